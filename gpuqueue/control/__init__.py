"""The controller: one loop that reads, plans, acts and records. Only the lead runs it."""

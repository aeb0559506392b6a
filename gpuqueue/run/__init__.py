"""One job's life as a process: launch, supervise, execute a payload, act on a process tree.

The launcher and the runner import the standard library alone and start fast; nothing here knows
the store, the settings or the network.
"""

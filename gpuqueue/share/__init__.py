"""How a share is enforced and proven. Each mechanism has a module or a package of its own."""

"""gpuqueue in a Jupyter server: REST, events and the controller."""

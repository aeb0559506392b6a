"""The widgets of gpuqueue."""

#!/bin/sh
# JupyterLab with the queue's extension, for a container, at $JUPYTER_PORT (8888). Arguments are
# JupyterLab's own.
set -eu

# said at the start, because a container that was given no GPUs is a common mistake
gpuqueue gpus || true

# some container engines make their user root, inside
if [ "$(id -u)" = 0 ]; then
    set -- --allow-root "$@"
fi
exec jupyter lab --ip=0.0.0.0 --ServerApp.port_retries=0 --no-browser "$@"

"""Programs of the failure-injection test: jobs that keep an audit, and those that submit them.

An audit line is ``begin|end|saved|clash token attempt pid [number]``, appended in one write to a
file opened with O_APPEND, so that lines of many processes stay whole and in order.
"""

from __future__ import annotations

# audit, token, seconds, ending ("exit N" or "signal N"), folder of locks, flock's -x or -s, family
SCRIPT = r"""
attempt=${GPUQUEUE_ATTEMPT_DIR##*/}
echo "begin $2 $attempt $$" >>"$1"
handle=5
IFS=,
for gpu in $CUDA_VISIBLE_DEVICES; do
    handle=$((handle + 1))
    eval "exec $handle>>\"\$5/gpu-\$gpu\""
    flock -n -E 97 "$6" $handle # which may be killed itself
    [ $? = 97 ] && { echo "clash $2 $attempt $$ $gpu" >>"$1"; exit 99; }
done
IFS=' '
if [ "$7" = family ]; then
    setsid sleep 300 &
fi
sleep "$3"
echo "end $2 $attempt $$" >>"$1"
set -- $4
[ "$1" = exit ] && exit "$2"
kill "-$2" $$
sleep 60
"""

# audit, token, steps, exit code, file of the state
RESUMABLE = r"""
import os, sys, time
from gpuqueue import checkpoint

audit, token, steps, code, state = sys.argv[1:]
attempt = os.path.basename(os.environ["GPUQUEUE_ATTEMPT_DIR"])

def note(word, *more):
    line = " ".join([word, token, attempt, str(os.getpid()), *map(str, more)]) + "\n"
    handle = os.open(audit, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)

at = int(open(state).read()) if os.path.exists(state) else 0
note("begin", at)
while at < int(steps):
    time.sleep(0.04)
    at += 1
    with checkpoint.atomic_path(state) as partial, open(partial, "w") as file:
        file.write(str(at))
    note("saved", at)
    if at < int(steps) and checkpoint.should_stop():
        sys.exit(0)
note("end")
sys.exit(int(code))
"""

# One fork for each client: importing gpuqueue is what takes long. A client that is killed is
# killed as itself; this host goes on.
CLIENTS = r"""
import json, os, sys, time
import gpuqueue, gpuqueue.client, gpuqueue.client.payload, gpuqueue.control.lead

def work(audit, token, seconds, value):
    attempt = os.path.basename(os.environ["GPUQUEUE_ATTEMPT_DIR"])
    for word in "begin", "end":
        line = f"{word} {token} {attempt} {os.getpid()}\n"
        handle = os.open(audit, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line.encode())
        os.close(handle)
        if word == "begin":
            time.sleep(seconds)
    if value < 0:
        raise ValueError(value)
    return value

def say(**words):
    os.write(1, json.dumps(words).encode() + b"\n")

def client(orders):
    for order in orders:
        try:
            if "cancel" in order:
                gpuqueue.job(order["cancel"]).cancel()
                continue
            call, options = order["call"], order["options"]
            what = [work, *call] if order["kind"] == "function" else [call]
            job = gpuqueue.submit(*what, key=order["token"], tag=order["token"], **options)
            say(token=order["token"], id=job.id)
        except gpuqueue.errors.NotAllowedNow:
            pass
        except gpuqueue.errors.GpuqueueError as error:
            say(token=order.get("token"), error=repr(error))

say(ready=True)
for line in sys.stdin:
    number, orders = json.loads(line)
    pid = os.fork()
    if not pid:
        try:
            client(orders)
        finally:
            os._exit(0)
    say(client=number, pid=pid)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""

# A notebook without a front end: its cells have a spare kernel.
NOTEBOOK = r"""
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpuqueue")
import gpuqueue

os.write(1, b'{"ready": true}\n')
for line in sys.stdin:
    token, source = json.loads(line)
    sys.stdout = sys.stderr
    shell.run_cell_magic("gpu", f"--bg --tag {token} --key {token} --slots 1", source)
    (number,) = (job.id for job in gpuqueue.jobs(limit=100) if job.tag == token)
    os.write(1, json.dumps({"token": token, "id": number}).encode() + b"\n")
"""

CELL = """
import os, time
def note(word):
    attempt = os.path.basename(os.environ["GPUQUEUE_ATTEMPT_DIR"])
    handle = os.open({audit!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{{word}} {token} {{attempt}} {{os.getpid()}}\\n".encode())
    os.close(handle)
note("begin")
time.sleep({seconds})
note("end")
"""

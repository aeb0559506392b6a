"""What shares and caps are worth on a real GPU: a line of JSON for each step, in five minutes.

    python bench/h200.py            on the first GPU; on a pretend one where there is none
    python bench/h200.py --fake     on a pretend one, to see that it works
    python bench/h200.py --quick    a twentieth of the time; its figures mean little

It needs Python 3.11, a C compiler (or ``--library``, the memory cap's library built elsewhere)
and, for the steps with MPS, ``nvidia-cuda-mps-control``. It runs as any user, changes no clocks, no
compute mode and no MIG, and leaves no process and no file behind. It is written for an H200 and
says of each step whether it came up to what was aimed at: ``pass`` is true, false, or null where
there is no aim. A step that cannot be done here says ``skipped`` and why, and the next one goes on.
Lines are printed as steps end, so a run that is cut short has said what it knows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from h200_stage import (
    FRAMEWORKS,
    HERE,
    Program,
    Skipped,
    Stage,
    framework,
    has_gpu,
    stage,
    telemetry,
)

from gpuqueue.errors import GpuqueueError
from gpuqueue.run.process import identify
from gpuqueue.share import memcap
from gpuqueue.share.memcap.canary import try_out
from gpuqueue.share.mps import Mps
from gpuqueue.share.mps.clients import end
from gpuqueue.share.mps.daemon import running, users

MIB, GIB = 1 << 20, 1 << 30
OOM = 2
Result = tuple[dict[str, Any], bool | None]


def probe(on: Stage) -> Result:
    """What is here: the GPU, the driver, and which mechanisms hold."""
    seen = on.program(on.plain).ask("about")
    on.card, on.total, on.multiprocessors = seen["uuid"], seen["total"], seen["multiprocessors"]
    found: dict[str, Any] = {"gpu": seen, "driver": telemetry(on)}
    try:
        on.library = on.library or memcap.build(on.folder / "library")
        found["memory_cap"] = try_out(on.library, on.card, on.plain) or "holds"
    except GpuqueueError as error:
        found["memory_cap"] = str(error)
    if found["memory_cap"] != "holds":
        on.library = None
    mechanism = Mps([on.card], on.folder / "proofs", on.base, root=on.root)
    said = mechanism.probe()
    found["mps"] = {"usable": said.usable, "said": said.reason, "seen": said.figure}
    if said.usable:
        on.mps = mechanism
        for percent in (25, 50):
            about = on.program(on.shared(percent)).ask("about")
            found["mps"][f"multiprocessors_at_{percent}"] = about["multiprocessors"]
    on.why_no_mps = f"MPS cannot be used here: {said.reason}"
    return found, said.usable and on.library is not None


def whole(on: Stage) -> Result:
    """The whole GPU, with the memory cap and without."""
    alone = on.program(on.plain)
    plain = on.together([alone], 20)[0]
    now = telemetry(on)
    alone.close()
    on.figures["whole"] = plain["tflops"]
    found: dict[str, Any] = {**plain, "telemetry": now}
    environment, _ = on.capped(on.total)
    within = on.together([on.program(environment)], 12)[0]
    found["tflops_with_memory_cap"] = within["tflops"]
    found["ratio"] = within["tflops"] / plain["tflops"]
    return found, found["ratio"] >= 0.995


def split(percent: int, count: int, spread: float | None) -> Callable[[Stage], Result]:
    """So many programs with so much each."""

    def step(on: Stage) -> Result:
        programs = [on.program(on.shared(percent)) for _ in range(count)]
        sms = [program.ask("about")["multiprocessors"] for program in programs]
        found = _rates(on, on.together(programs, 20 if count > 1 else 10)) | {
            "multiprocessors": sms
        }
        if spread is None:
            return found, found["of_whole"] is None or found["of_whole"] <= 0.45
        enough = found["of_whole"] is None or found["of_whole"] >= 0.95
        return found, enough and found["spread"] <= spread

    return step


def _rates(on: Stage, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rates = [one["tflops"] for one in said]
    whole_rate = on.figures.get("whole")
    return {
        "work": said[0]["work"],
        "tflops": [round(rate, 2) for rate in rates],
        "sum": round(sum(rates), 2),
        "of_whole": whole_rate and round(sum(rates) / whole_rate, 4),
        "spread": round(max(rates) / min(rates) - 1, 5),
        "telemetry": telemetry(on),
    }


def uncapped(on: Stage) -> Result:
    """Four programs that know nothing of each other: what shares are to be better than."""
    return _rates(on, on.together([on.program(on.plain) for _ in range(4)], 20)), None


def latency(on: Stage) -> Result:
    """Small kernels beside a hog: with shares, and without."""
    found = {}
    for name, environments in (
        ("shares", lambda: (on.shared(75), on.shared(25))),
        ("no_shares", lambda: (on.plain, on.plain)),
    ):
        hog, small = (on.program(environment) for environment in environments())
        hog.ask("work", limit=90)
        small.ask("latency", start=time.monotonic(), seconds=0.05)
        start, seconds = time.monotonic() + on.short, 8 * on.short
        hog.send("burn", start=start, warm=0, seconds=seconds + on.short)
        found[name] = small.ask("latency", start=start + on.short / 2, seconds=seconds)
        found[name]["hog_tflops"] = round(hog.hear()["tflops"], 2)
        on.clear()
    return found, found["shares"]["p99_us"] < found["no_shares"]["p99_us"]


def refusals(on: Stage) -> Result:
    """What is over a cap is refused, whichever way it is asked for, and for the whole job."""
    cap = 4 * GIB
    environment, folder = on.capped(cap)
    found: dict[str, Any] = {}
    for how in ("cuMemAlloc", "cuMemCreate", "cuMemAllocAsync"):
        program = on.program(environment)
        over = program.ask("allocate", size=cap + 2 * MIB, how=how)["result"]
        fits = program.ask("allocate", size=cap // 2, how=how)["result"]
        found[how] = {"over": over, "fits": fits}
        program.close()
    one, two = on.program(environment), on.program(environment)
    part = cap * 6 // 10 // (2 * MIB) * 2 * MIB
    job = [program.ask("allocate", size=part)["result"] for program in (one, two)]
    found["two_of_60_per_cent"] = {"memory_cap": job, "refusals": memcap.read(folder)[0].refusals}
    good = job == [0, OOM] and all(
        (found[how]["over"], found[how]["fits"]) == (OOM, 0)
        for how in ("cuMemAlloc", "cuMemCreate", "cuMemAllocAsync")
    )
    on.clear()
    if on.mps is not None:
        programs = [on.program(on.shared(25, cap + GIB)) for _ in range(2)]
        alone = [program.ask("allocate", size=part)["result"] for program in programs]
        found["two_of_60_per_cent"]["mps_alone"] = alone
        found["mps_over"] = programs[0].ask("allocate", size=cap + 2 * GIB)["result"]
        good = good and alone == [0, 0] and found["mps_over"] == OOM
    found["frameworks"] = {
        name: framework(on, environment, name, cap + 2 * MIB) for name in FRAMEWORKS
    }
    return found, good


def resize(on: Stage) -> Result:
    """Another cap for a program that runs."""
    environment, folder = on.capped(GIB)
    program = on.program(environment)
    results = [program.ask("allocate", size=2 * GIB)["result"]]
    memcap.resize(folder, {on.card: 3 * GIB})
    results.append(program.ask("allocate", size=2 * GIB)["result"])
    memcap.resize(folder, {on.card: GIB})
    results.append(program.ask("allocate", size=2 * MIB)["result"])
    over = memcap.read(folder)[0].over
    program.ask("release")
    results.append(program.ask("allocate", size=512 * MIB)["result"])
    return {"results": results, "over": over}, results == [OOM, 0, OOM, 0] and over == GIB


def costs(on: Stage) -> Result:
    """Allocations and launches a second, with the memory cap and without, by turns."""
    kinds = {
        "cuMemAlloc 2 MiB": ("cuMemAlloc", 2 * MIB, 1),
        "cuMemAlloc 64 MiB": ("cuMemAlloc", 64 * MIB, 1),
        "cuMemAlloc 2 MiB, 4 threads": ("cuMemAlloc", 2 * MIB, 4),
        "cuMemCreate 2 MiB": ("cuMemCreate", 2 * MIB, 1),
        "launch": ("launch", 0, 1),
    }
    environment, _ = on.capped(on.total)
    pair = {"without": on.program(on.plain), "with": on.program(environment)}
    rates: dict[str, dict[str, list[float]]] = {kind: {"without": [], "with": []} for kind in kinds}
    for _ in range(5):
        for kind, (how, size, threads) in kinds.items():
            for name, program in pair.items():
                said = program.ask(
                    "pairs", how=how, size=size, threads=threads, seconds=0.4 * on.short
                )
                rates[kind][name].append(said["per_s"])
    found = {}
    for kind, both in rates.items():
        without, within = (statistics.median(both[name]) for name in ("without", "with"))
        found[kind] = {
            "per_s": round(without),
            "with_cap": round(within / without, 4),
            "lowest": round(min(both["without"]) / without, 3),
            "highest": round(max(both["without"]) / without, 3),
        }
    return found, all(one["with_cap"] >= 0.99 for one in found.values())


def stopped(on: Stage) -> Result:
    """One of four quarters is stopped: what the others have of it."""
    programs = [on.program(on.shared(25)) for _ in range(4)]
    programs[0].ask("allocate", size=GIB)
    before = [one["tflops"] for one in on.together(programs, 5, warm=1)]
    programs[0].signal(signal.SIGSTOP)
    free = programs[1].ask("about")["free"]
    during = [one["tflops"] for one in on.together(programs[1:], 5, warm=1)]
    programs[0].signal(signal.SIGCONT)
    after = programs[0].ask("about")
    ratio = statistics.mean(during) / statistics.mean(before[1:])
    found = {"peers": round(ratio, 4), "free_while_stopped": free, "went_on": bool(after)}
    return found, ratio >= 0.98


def checkpointed(on: Stage) -> Result:
    """A process that is not under MPS gives all its memory back, and has it again."""
    size = 20 * GIB if not on.fake else GIB
    program, watcher = on.program(on.plain), on.program(on.plain)
    program.ask("allocate", size=size)
    program.ask("fill", value=0xC0FFEE)
    before = watcher.ask("about")["free"]
    took = {}
    for what in ("suspend", "resume"):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(HERE / "h200_gpu.py"), what, str(program.pid)],
            env=on.plain, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        said = json.loads(done.stdout or '{"unsupported": "the program that asks ended"}')
        if "unsupported" in said:
            raise Skipped(said["unsupported"])
        took[f"{what}_s"] = round(time.monotonic() - began, 2)
        if what == "suspend":
            took["freed"] = watcher.ask("about")["free"] - before
    same = program.ask("same", value=0xC0FFEE)["same"]
    return {**took, "same": same}, same and took["freed"] >= size


def ended(on: Stage) -> Result:
    """Programs under MPS are ended while they work: as is supported, then by a bare kill."""
    found: dict[str, Any] = {}
    for name in ("let_go_of", "killed"):
        victim, other = (on.program(on.shared(25)) for _ in range(2))
        for program in (victim, other):
            program.ask("work", limit=90)
        victim.send("burn", start=time.monotonic(), warm=0, seconds=60)
        time.sleep(on.short)
        began = time.monotonic()
        process = identify(victim.pid)
        assert process is not None
        if name == "let_go_of":
            (how,) = end(on.control, [process])
            found[name] = {"released": how.released, "said": how.sentence}
        else:
            victim.signal(signal.SIGKILL)
            found[name] = {}
        victim.wait()
        found[name]["took_s"] = round(time.monotonic() - began, 3)
        began = time.monotonic()
        on.program(on.shared(25)).ask("about")
        found[name]["next_s"] = round(time.monotonic() - began, 3)
        found[name]["other"] = _works(other)
        on.clear()
    good = found["let_go_of"]["released"] and all(one["next_s"] < 5 for one in found.values())
    return found, good and found["let_go_of"]["other"] == "works"


def _works(program: Program) -> str:
    try:
        program.ask("burn", start=time.monotonic(), warm=0, seconds=0.5)
    except RuntimeError as error:
        return str(error)
    return "works"


def nothing_left(on: Stage) -> Result:
    """No daemon, no process and no pipe directory is left."""
    if on.mps is None:
        raise Skipped(on.why_no_mps)
    left = {
        "daemon": running(on.place) is not None,
        "pipe": on.place.pipe.exists(),
        "processes": list(users(on.place)),
    }
    return left, not any(left.values())


STEPS: dict[str, tuple[float, Callable[[Stage], Result]]] = {
    "probe": (25, probe),
    "whole": (42, whole),
    "one quarter": (16, split(25, 1, None)),
    "two halves": (26, split(50, 2, 0.01)),
    "four quarters": (27, split(25, 4, 0.003)),
    "four without shares": (27, uncapped),
    "latency": (26, latency),
    "refusals": (28, refusals),
    "resize": (5, resize),
    "costs": (25, costs),
    "stopped": (18, stopped),
    "checkpoint": (25, checkpointed),
    "ended": (15, ended),
    "nothing left": (5, nothing_left),
}
"""Seconds that a step may need, and the step; the one that could spoil the rest comes last."""


def run(name: str, on: Stage, left: float) -> dict[str, Any]:
    """One step as a line."""
    needs, step = STEPS[name]
    line: dict[str, Any] = {"step": name}
    began = time.monotonic()
    try:
        if needs * on.short > left:
            raise Skipped(f"{left:.0f} s are left, and it may need {needs * on.short:.0f}")
        if name != "probe" and not on.card:
            raise Skipped("the probe found no GPU that can be used")
        line["result"], line["pass"] = step(on)
    except Skipped as why:
        line["skipped"] = str(why)
    except (GpuqueueError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        line["error"], line["pass"] = f"{type(error).__name__}: {error}", False
    on.clear()
    line["s"] = round(time.monotonic() - began, 2)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fake", action="store_true", help="a pretend GPU")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the time")
    parser.add_argument("--library", type=Path, help="the memory cap's library, built elsewhere")
    parser.add_argument("--limit", type=float, default=290, help="seconds in all (290)")
    parser.add_argument("--only", help="names of steps, with commas; the probe is always done")
    asked = parser.parse_args()
    only = asked.only.split(",") if asked.only else list(STEPS)
    if unknown := set(only) - set(STEPS):
        parser.error(f"there is no step {', '.join(sorted(unknown))}")
    began = time.monotonic()
    fake = asked.fake or not has_gpu()
    library = asked.library and asked.library.resolve()
    system = {"python": platform.python_version(), "cores": os.cpu_count(), "uid": os.geteuid()}
    say({"bench": "h200", "fake": fake, **system, "limit_s": asked.limit})
    lines = []
    with stage(fake=fake, short=0.05 if asked.quick else 1.0, library=library) as on:
        for name in STEPS:
            if name == "probe" or name in only:
                lines.append(run(name, on, asked.limit - (time.monotonic() - began)))
                say(lines[-1])
    say(
        {
            "step": "all",
            "s": round(time.monotonic() - began, 2),
            "passed": [line["step"] for line in lines if line.get("pass")],
            "failed": [line["step"] for line in lines if line.get("pass") is False],
            "skipped": [line["step"] for line in lines if "skipped" in line],
        }
    )


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

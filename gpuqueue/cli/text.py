"""Facts as text for people. Pure functions: whatever the clock or the machine says is passed in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuqueue.model import TERMINAL, WHOLE, Job, JobState, Preset, Request
from gpuqueue.plan import Need, Wait, WaitReason
from gpuqueue.units import format_bytes, format_duration, format_share

__all__ = [
    "ended_text",
    "gpu_table",
    "job_table",
    "meaning",
    "one_line",
    "request_text",
    "show_text",
    "submission_text",
    "table",
]

_DAY = 86400


def one_line(text: str, width: int | None = None) -> str:
    """Text on one line, with nothing in it that could act on a terminal."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def clock(at: float, now: float) -> str:
    """The time of day; with the date where that is needed to tell which day."""
    near = abs(at - now) < _DAY / 2
    return time.strftime("%H:%M" if near else "%a %d %b %H:%M", time.localtime(at))


def moment(at: float) -> str:
    """Date and time to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def meaning(request: Request, need: Need) -> str:
    """What a request comes to on this machine: ``1 whole GPU, 2 slots``."""
    slots = _count(need.slots, "slot")
    if need.exclusive:
        return f"the whole machine, alone: {_count(need.gpus, 'GPU')}, {slots}"
    if not need.gpus:
        return f"no GPU, {slots}"
    if need.whole:
        return f"{need.gpus} whole {'GPU' if need.gpus == 1 else 'GPUs'}, {slots}"
    parts = []
    if need.compute:
        parts.append(f"{format_share(need.compute)} of the compute")
    if need.memory is not None:
        parts.append(f"{format_bytes(need.memory)} of the memory")
    if request.preset is Preset.LIGHT:
        return ", ".join(["light work on the shared GPU", *parts, slots])
    where = "1 GPU" if need.gpus == 1 else f"each of {need.gpus} GPUs"
    return f"{' and '.join(parts)} of {where}, {slots}"


def submission_text(
    job: Job,
    need: Need,
    *,
    now: float,
    program: str,
    wait: Wait | None = None,
    waiting: int = 0,
    gpus: str = "",
    dropped: str = "",
    seen_before: bool = False,
    absent: str = "",
) -> str:
    """What a submit tells.

    Parameters
    ----------
    wait, waiting
        Why it waits, and how many jobs wait with it.
    gpus
        Where it runs, if it has been started: ``GPU 0``.
    dropped
        Why it is about to be cancelled; empty otherwise.
    seen_before
        It is an earlier job with the same key.
    absent
        A sentence for where no controller runs and none will be started.
    """
    lines = [f"job {job.id}  {one_line(job.tag)}  {meaning(job.request, need)}"]
    if seen_before:
        lines.append(f"the same key was given to this job before; it is {job.state}")
    if job.state is JobState.QUEUED:
        lines += _waiting_lines(wait, waiting, dropped, absent, now)
    elif job.state not in TERMINAL:
        lines.append(f"starts now on {gpus}" if gpus else "starts now")
    elif not seen_before:
        lines.append(ended_text(job))
    lines.append(f"log: {program} logs {'' if job.state in TERMINAL else '-f '}{job.id}")
    return "\n".join(lines)


def _waiting_lines(
    wait: Wait | None, waiting: int, dropped: str, absent: str, now: float
) -> list[str]:
    if dropped:
        return [f"will be cancelled: {dropped}"]
    if wait is None or wait.reason is WaitReason.STARTING:
        return [absent or (wait.sentence if wait else "starts now")]
    when = "nobody can tell yet when it starts"
    if wait.expected is not None:
        left = wait.expected - now
        when = f"expected to start in {format_duration(left)} ({clock(wait.expected, now)})"
        if left < 1:
            when = "expected to start soon"
        if wait.by is not None:
            when += f", most likely by {clock(wait.by, now)}"
    lines = [f"position {wait.position} of {waiting}, {when}", f"why: {wait.sentence}"]
    if wait.hint:
        lines.append(f"hint: {wait.hint}")
    if absent:
        lines.append(absent)
    return lines


def ended_text(job: Job) -> str:
    """``succeeded``, or how else a job ended and why."""
    reason = one_line(job.reason.splitlines()[0]) if job.reason else ""
    word = "was cancelled" if job.state is JobState.CANCELLED else str(job.state)
    if job.state is JobState.CANCELLED and reason.startswith("cancelled"):
        return f"was {reason}"
    return f"{word}: {reason}" if reason else word


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Cells padded to columns, the head first; the last column is left as it is."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    return [
        [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        for line in lines
    ]


def job_table(jobs: Iterable[Job], now: float) -> list[list[str]]:
    """One row for each job; ids to the right, the command last."""
    rows = [
        (
            str(job.id),
            str(job.state),
            one_line(job.tag, 24),
            str(job.kind),
            one_line(job.owner, 16),
            clock(job.submitted, now),
            format_duration(job.ran(now)) if job.started else "-",
            "-" if job.returncode is None else str(job.returncode),
            one_line(job.command, 80),
        )
        for job in jobs
    ]
    head = ("ID", "STATE", "TAG", "KIND", "OWNER", "SUBMITTED", "TOOK", "CODE", "COMMAND")
    return table(head, rows)


def gpu_table(gpus: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """One row for each GPU of a status; who holds it last."""
    rows = []
    for gpu in gpus:
        used = (gpu["reading"] or {}).get("memory_used")
        holders = [
            f"job {grant['job']} ({one_line(grant['tag'], 24)})" for grant in gpu["grants"]
        ] + [f"{one_line(holder)} outside the queue" for holder in gpu["outside_holders"]]
        if gpu["outside"] and not gpu["outside_holders"]:
            holders.append(f"{format_bytes(gpu['outside'])} outside the queue")
        memory = f"{format_bytes(used)} of {format_bytes(gpu['memory'])}"
        held = ", ".join(holders) or "free"
        if gpu["drained"]:
            held += "; takes no new jobs"
        name = one_line(gpu["name"], 40)
        rows.append((str(gpu["index"]), name, memory, _left(gpu), gpu["uuid"], held))
    return table(("GPU", "NAME", "MEMORY", "LEFT", "UUID", "HELD BY"), rows)


def _left(gpu: Mapping[str, Any]) -> str:
    """What is not promised of a GPU: compute and memory."""
    if any(grant["whole"] for grant in gpu["grants"]):
        return "nothing"
    compute = f"{100 * max(0, WHOLE - gpu['compute_promised']) // WHOLE}%"
    if gpu["memory"] is None:
        return compute
    memory = max(0, gpu["memory"] - gpu["memory_promised"] - gpu["outside"])
    return f"{compute}, {format_bytes(memory)}"


def request_text(request: Mapping[str, Any]) -> str:
    """A request in the words of the options, without what was left at its default."""
    words = [str(request["preset"])]
    counts = [name for name in ("gpus", "slots") if request[name] is not None]
    words += [f"{name} {request[name]}" for name in counts]
    if request["share"] is not None:
        words.append(f"share {format_share(request['share'])}")
    if request["memory"] is not None:
        words.append(f"mem {format_bytes(request['memory'])}")
    if request["eta"] is not None:
        words.append(f"eta {format_duration(request['eta'])}")
    if request["priority"]:
        words.append(f"priority {request['priority']}")
    if request["after"]:
        words.append("after " + ",".join(str(parent) for parent in request["after"]))
    if request["restartable"]:
        words.append("restartable")
    if request.get("preemptible"):
        words.append("preemptible")
    if request.get("resumable"):
        words.append("resumable")
    words += [f"require {name}=hard" for name in request.get("require", ())]
    if request.get("burst"):
        words.append("burst")
    return ", ".join(words)


def _grant_text(grant: Mapping[str, Any], names: Mapping[str, str]) -> str:
    name = names.get(grant["gpu"], grant["gpu"])
    if grant["whole"]:
        return f"{name}, whole"
    share = f"{format_share(grant['compute'])} of its compute, " if grant["compute"] else ""
    return f"{name}, {share}{format_bytes(grant['memory'])}"


def _ran(view: Mapping[str, Any], now: float) -> float:
    """`Job.ran` of the job that ``view`` shows."""
    until: float = now if view["ended"] is None else view["ended"]
    if view["frozen_at"] is not None:
        until = min(until, view["frozen_at"])
    return max(0.0, until - float(view["started"]) - float(view["frozen"]))


def show_text(view: Mapping[str, Any], now: float) -> str:
    """All about one job, from the data of ``show --json``."""
    rows: list[tuple[str, str]] = [
        ("command", one_line(view["command"])),
        ("runs in", one_line(view["cwd"])),
        ("asked for", request_text(view["request"])),
    ]
    origin = view["origin"]
    place = " ".join(part for part in (origin["kind"], origin["path"], origin["session"]) if part)
    rows.append(("from", one_line(f"{view['owner']}, {place}")))
    if view["key"]:
        rows.append(("key", one_line(view["key"])))
    if view["retry_of"]:
        rows.append(("retry of", f"job {view['retry_of']}"))
    rows.append(("submitted", moment(view["submitted"])))
    if view["started"]:
        rows.append(("started", moment(view["started"])))
    if view["ended"]:
        rows.append(("ended", moment(view["ended"])))
    if view["started"]:
        rows.append(("took", format_duration(_ran(view, now))))
    if view["returncode"] is not None:
        rows.append(("exit code", str(view["returncode"])))
    if view["reason"]:
        rows.append(("reason", one_line(view["reason"])))
    if wait := view["wait"]:
        when = "" if wait["expected"] is None else f", start {clock(wait['expected'], now)}"
        rows.append(("waiting", f"position {wait['position']}{when}: {wait['sentence']}"))
        if wait["hint"]:
            rows.append(("hint", wait["hint"]))
    rows += _learned_rows(view)
    if view["placement"]:
        names = {gpu["uuid"]: f"GPU {gpu['index']} ({gpu['name']})" for gpu in view["gpus"]}
        grants = [_grant_text(grant, names) for grant in view["placement"]["grants"]]
        slots = _count(view["placement"]["slots"], "slot")
        rows.append(("GPUs", "; ".join([*grants, slots] if grants else ["none", slots])))
    rows += _hold_rows(view)
    rows += _rate_rows(view)
    rows += _code_rows(view)
    rows.append(("environment", _environment_text(view["environment"])))
    rows += [("files", view["directory"]), ("log", view["log"])]
    lines = [f"job {view['id']}  {one_line(view['tag'])}  {view['kind']}  {view['state']}"]
    lines += [f"  {name:<12} {value}" for name, value in rows]
    lines.append("  events")
    for event in view["events"]:
        if event["kind"] == "code":
            continue  # told above
        about = ", ".join(f"{key} {value}" for key, value in event["data"].items())
        lines.append(f"    {moment(event['at'])}  {event['kind']:<12} {one_line(about)}".rstrip())
    return "\n".join(lines)


def _learned_rows(view: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if view["peak"] is not None:
        over = f", {format_bytes(view['excess'])} over its --mem" if view["excess"] else ""
        rows.append(("GPU memory", f"at most {format_bytes(view['peak'])} on one GPU{over}"))
    # a notebook's command is its file, a cell's its code
    what = {"cell": "code", "notebook": "notebook"}.get(view["kind"], "command")
    if view["learned"] is not None:
        learned = f"{format_duration(view['learned'])}, by earlier runs of this {what}"
        rows.append(("may take", learned))
    if view["learned_memory"] is not None and not view["lacked"]:
        learned = f"{format_bytes(view['learned_memory'])}, by earlier runs of this {what}"
        rows.append(("may need", learned))
    if view["lacked"]:
        rows.append(("ran out of", f"{format_bytes(view['lacked'])}; ran once more with all"))
    return rows


def _hold_rows(view: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How far it is held to its share, by what, and what was seen to contradict that."""
    hold = view.get("hold")
    if not hold:
        return []
    by = f", by {', '.join(hold['by'])}" if hold["by"] else ""
    rows = [("held to it", f"compute {hold['compute']}, memory {hold['memory']}{by}")]
    rows += [
        ("", one_line(why, 200) if name == "all" else f"without {name}: {one_line(why, 200)}")
        for name, why in hold["missing"].items()
    ]
    return rows + [("but", one_line(doubt, 200)) for doubt in hold["doubts"]]


def _rate_rows(view: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What it gets done, of what it has noted."""
    texts = [_rate_text(rate) for rate in view.get("throughput", ())]
    return [("" if number else "does", text) for number, text in enumerate(texts)]


def _rate_text(rate: Mapping[str, Any]) -> str:
    """What a job does: ``12.4 steps/s, 179,000 for each hour of a whole GPU``."""
    each = rate["per_gpu_hour"]
    more = "" if each is None else f", {_rounded(each)} for each hour of a whole GPU"
    return f"{_rounded(rate['per_second'])} {one_line(rate['name'])}/s{more}"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _code_rows(view: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if code := view.get("code"):
        words = [f"{code['version']} of {one_line(code['what'])}"] if code["version"] else []
        if code["commit"]:
            state = {True: "with changes", False: "unchanged", None: "changes unknown"}
            branch = f" on {one_line(code['branch'])}" if code["branch"] else ""
            words.append(f"commit {code['commit'][:12]}{branch}, {state[code['dirty']]}")
        if words:
            rows.append(("code", "; ".join(words)))
    if checkpoints := view.get("checkpoints"):
        rows.append(("checkpoints", f"{len(checkpoints)}, the last {one_line(checkpoints[-1])}"))
    return rows


def _environment_text(environment: Mapping[str, Sequence[str]] | None) -> str:
    if environment is None:
        return "not kept any more"
    parts = [
        f"{words} {', '.join(one_line(name) for name in environment[key])}"
        for key, words in (
            ("changed", "other values than here for"),
            ("added", "not set here:"),
            ("removed", "set only here:"),
        )
        if environment[key]
    ]
    return "; ".join(parts) or "the same as here"

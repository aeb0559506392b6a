"""A workload beside notebooks: what the idle ones lend is used, and a cell has its own at once."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from typer import Typer
from typer.testing import CliRunner

from gpuqueue.cli.simulate import simulate
from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus.fake import parse_fake
from gpuqueue.model import Request
from gpuqueue.plan import Policy
from gpuqueue.simulate import TraceJob
from gpuqueue.simulate.lending import Lent, beside, fitting
from gpuqueue.simulate.notebooks import Habits, kernels_of

GPUS = parse_fake("2x80G")
GIB = 1 << 30


def work(count: int = 80, share: int = 250, gap: float = 300.0) -> list[TraceJob]:
    """More parts of GPUs than there is room for, some minutes each."""
    random = Random(3)
    return [
        TraceJob(
            n, n * gap, 600.0 + random.randrange(3000),
            Request(gpus=1, share=share, memory=4 * GIB, slots=1), share / 1000,
        )
        for n in range(count)
    ]  # fmt: skip


def played(
    jobs: list[TraceJob], spec: str = "16x0.25", busy: float = 0.05, **rules: object
) -> Lent:
    policy = Policy(1000, None, **{"overcommit": 2000, **rules})  # type: ignore[arg-type]
    kernels = kernels_of(spec, GPUS, policy)
    return beside(jobs, kernels, GPUS, policy, Habits(busy, 1))[1]


def test_batch_work_uses_what_notebooks_leave_idle() -> None:
    lent = played(work(200, gap=120.0))
    told = lent.told()
    assert told["idle_used_of_what_fits"] > 0.9
    assert lent.pauses
    assert told["cells_that_took_back"] > 0
    # sixteen of them are busy at once too seldom for one to wait long for another
    assert told["cell_wait_mean_s"] < 1


def test_nothing_is_used_where_nothing_is_lent() -> None:
    lent = played(work(20), lend="off")
    assert (lent.used, lent.borrowed, lent.pauses) == (0.0, 0, [])


def test_many_busy_notebooks_take_turns() -> None:
    lent = played(work(20), busy=0.8)
    assert lent.told()["cells_that_waited"] > 0
    assert len(lent.cells) > 100


def test_which_notebooks_and_which_jobs_there_can_be() -> None:
    rules = Policy(1000, None)
    assert len(kernels_of("8x0.25:10G", GPUS, rules)) == 8
    with pytest.raises(InvalidRequest, match=r"8 of them fit\. There is no room"):
        kernels_of("9x0.25:10G", GPUS, rules)
    with pytest.raises(InvalidRequest, match=r"is not such as 16x0\.25"):
        kernels_of("a lot", GPUS, rules)
    with pytest.raises(InvalidRequest, match="busy"):
        Habits(1.0, 1)
    whole = TraceJob(900, 0.0, 10.0, Request(gpus=1), 1.0)
    assert fitting([whole], kernels_of("5x0.25", GPUS, rules), GPUS, rules) == []
    assert fitting([whole], kernels_of("3x0.25", GPUS, rules), GPUS, rules) == [whole]


def test_the_command(tmp_path: Path) -> None:
    rows = [f"{j.id},{int(j.submit)},{int(j.run)},0,1,250,4096,0,u,c," for j in work(20)]
    trace = tmp_path / "trace.csv"
    head = "id,submit,run,est,gpus,milli,mem,peak,user,cmd,klass"
    trace.write_text("\n".join([head, *rows, "99,0,60,0,1,1000,4096,0,u,c,"]) + "\n")
    app = Typer()
    app.command()(simulate)
    asked = ["--gpus", "2", "--notebooks", "8x0.25", "--busy", "0.05"]
    told = CliRunner().invoke(app, [str(trace), *asked, "--json"])
    found = json.loads(told.stdout)
    assert found["borrowers"] > 0
    assert found["without_room"] == 1
    assert 10 <= found["jobs"] <= 20  # the last come too late to start
    words = CliRunner().invoke(app, [str(trace), *asked]).stdout
    assert "of what could be used of it" in words

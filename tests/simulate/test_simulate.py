"""Workloads replayed on a virtual clock: what is read, what is decided, what is written."""

from __future__ import annotations

import csv
import gzip
import heapq
import json
from pathlib import Path
from random import Random

import pytest
import typer
from typer.testing import CliRunner

from gpuqueue.cli.simulate import simulate
from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus.fake import parse_fake
from gpuqueue.model import Request
from gpuqueue.plan import Policy
from gpuqueue.simulate import TraceJob, measure, read_trace, replay, scaled_to_load
from gpuqueue.simulate.engine import Estimates, Outcome

GPUS = parse_fake("4x80G")
RULES = Policy(1000, GPUS[-1].uuid)
HEADER = "id,submit,run,est,gpus,milli,mem,peak,user,cmd,klass"


def workload(seed: int, count: int = 300, gap: float = 500.0) -> list[TraceJob]:
    """Fractions, single GPUs and gangs, mostly short, some very long."""
    random = Random(seed)
    jobs, at = [], 0
    for number in range(count):
        at += int(random.expovariate(1 / gap))
        gpus, milli = random.choice([(1, 250), (1, 500), (1, 810), (1, 1000), (1, 1000), (2, 1000)])
        if random.random() < 0.05:
            gpus, milli = 4, 1000
        run = int(min(40_000, random.lognormvariate(6.5, 1.5))) + 1
        command = f"train.py {random.randrange(20)}"
        request = Request(gpus=gpus, share=milli, memory=0, slots=1, eta=3600)
        jobs.append(
            TraceJob(number, at, run, request, gpus * milli / 1000, f"u{number % 5}", command)
        )
    return jobs


def lines(jobs: list[TraceJob]) -> str:
    rows = [
        f"{j.id},{j.submit},{j.run},{j.request.eta},{j.request.gpus},{j.request.share},0,0,"
        f"{j.owner},{j.command},"
        for j in jobs
    ]
    return "\n".join(["# a note", HEADER, *rows]) + "\n"


def check_room(jobs: list[TraceJob], out: Outcome, gpus: int) -> None:
    """Nothing is promised twice, told from the starts alone."""
    free = [1000] * gpus
    ends: list[tuple[float, int, tuple[int, ...], int]] = []
    by_id = {job.id: job for job in jobs}
    for id_, start in sorted(out.start.items(), key=lambda each: each[1]):
        job = by_id[id_]
        while ends and ends[0][0] <= start:
            _, _, cards, milli = heapq.heappop(ends)
            for each in cards:
                free[each] += milli
        assert start >= job.submit
        assert len(set(out.gpus[id_])) == job.request.gpus
        for each in out.gpus[id_]:
            free[each] -= job.request.share or 0
            assert free[each] >= 0
        heapq.heappush(ends, (start + job.run, id_, out.gpus[id_], job.request.share or 0))


@pytest.mark.parametrize("seed", range(4))
def test_no_promise_is_broken_and_nothing_is_promised_twice(seed: int) -> None:
    jobs = workload(seed)
    out = replay(jobs, GPUS, RULES)
    found = measure(jobs, out, 4)
    assert found["jobs"] == 300
    assert found["promises_broken"] == 0
    assert found["promises"] > 20
    check_room(jobs, out, 4)
    assert replay(jobs, GPUS, RULES).start == out.start


def test_reordering_lowers_waiting() -> None:
    jobs = workload(1)
    in_turn = measure(jobs, replay(jobs, GPUS, Policy(1000, None, reorder_slack=0)), 4)
    strict = measure(
        jobs, replay(jobs, GPUS, Policy(1000, None, reorder_slack=0, backfill=False)), 4
    )
    freely = measure(jobs, replay(jobs, GPUS, Policy(1000, None)), 4)
    assert freely["wait_mean_s"] < in_turn["wait_mean_s"] < strict["wait_mean_s"]
    assert freely["slowdown_mean"] < in_turn["slowdown_mean"]


def test_off_it_is_first_come_first_served() -> None:
    jobs = workload(2, 100)
    out = replay(jobs, GPUS, Policy(1000, None, reorder_slack=0, backfill=False))
    starts = [out.start[job.id] for job in jobs]
    assert starts == sorted(starts)


def test_a_wide_job_in_a_stream_of_small_ones() -> None:
    """94 % of 8 GPUs are kept busy by hour-long jobs when a job comes that needs all of them."""
    gpus = parse_fake("8x80G")
    small = Request(gpus=1, share=1000, memory=0, slots=1)
    jobs = [TraceJob(i, i * 480, 3600, small, 1) for i in range(400)]
    wide = TraceJob(1000, 50_000, 3600, Request(gpus=8, share=1000, memory=0, slots=1), 8)
    jobs = sorted([*jobs, wide], key=lambda job: job.submit)
    out = replay(jobs, gpus, Policy(1000, gpus[-1].uuid))
    assert out.start[1000] - wide.submit <= 7200


def test_a_learned_estimate_uses_only_runs_that_had_ended() -> None:
    request = Request(gpus=4, share=1000, memory=0, slots=1, eta=50.0)
    jobs = [TraceJob(i, i * 10, 100, request, 4, "u", "x") for i in range(3)]
    later = TraceJob(9, 500, 100, request, 4, "u", "x")
    out = replay([*jobs, later], GPUS, RULES, Estimates.LEARNED)
    assert [out.start[i] for i in (0, 1, 2, 9)] == [0, 100, 200, 500]
    # nothing was known of the first three but the user's own 50 s
    assert out.latest[1] == 50 + 5400


def test_two_owners_with_endless_work_get_half_each() -> None:
    """One has many more jobs in line than the other."""
    request = Request(gpus=1, share=1000, memory=0, slots=1)
    jobs = [TraceJob(i, i // 10, 3600, request, 1, "many") for i in range(600)]
    jobs += [TraceJob(1000 + i, 1500 * i, 3600, request, 1, "few") for i in range(240)]
    jobs.append(TraceJob(5000, 2 * 86_400 + 7, 600, request, 1, "idle"))
    jobs.sort(key=lambda job: (job.submit, job.id))
    out = replay(jobs, GPUS, Policy(1000, None, fair_share=True))
    for day in (1, 2, 3):
        begin, end = day * 86_400, (day + 1) * 86_400
        used = {"many": 0.0, "few": 0.0, "idle": 0.0}
        for job in jobs:
            start = out.start[job.id]
            used[job.owner] += max(0.0, min(end, start + job.run) - max(begin, start))
        assert 0.45 <= used["many"] / sum(used.values()) <= 0.55
    after = [start for start in out.start.values() if start > 2 * 86_400 + 7]
    assert out.start[5000] == min(after)


def test_what_comes_after_a_job_begins_when_that_has_ended() -> None:
    """Also where the one that it comes after is too large for this machine, or in no trace."""
    asked = {1: Request(gpus=1), 2: Request(gpus=1, after=(1,)), 3: Request(gpus=9),
             4: Request(gpus=0, slots=1, after=(3, 77))}  # fmt: skip
    jobs = [TraceJob(key, 0.0, 100.0, request, 1.0) for key, request in asked.items()]
    out = replay(jobs, parse_fake("2x80G"), Policy(slots=4))
    assert out.start == {1: 0.0, 2: 100.0, 4: 0.0}
    assert set(out.refused) == {3}


def test_too_large_is_refused_not_stuck() -> None:
    jobs = [TraceJob(1, 0, 10, Request(gpus=5, share=1000), 5), *workload(1, 3)]
    out = replay(jobs, GPUS, RULES)
    assert out.refused == {1: "asks for 5 GPUs, this machine has 4"}


class TestReading:
    def test_csv_plain_and_compressed(self, tmp_path: Path) -> None:
        jobs = workload(3, 20)
        plain, packed = tmp_path / "a.csv", tmp_path / "b.csv.gz"
        plain.write_text(lines(jobs))
        packed.write_bytes(gzip.compress(lines(jobs).encode()))
        assert read_trace(plain, 4) == read_trace(packed, 4) == jobs

    def test_the_standard_workload_format(self, tmp_path: Path) -> None:
        path = tmp_path / "log.swf"
        path.write_text(
            "; MaxProcs: 128\n"
            "1 0 5 100 16 -1 -1 16 200 -1 1 7 1 3 1 -1 -1 -1\n"
            "2 10 5 60 64 -1 -1 -1 -1 -1 1 8 1 4 1 -1 -1 -1\n"
            "3 20 5 -1 64 -1 -1 -1 -1 -1 5 8 1 4 1 -1 -1 -1\n"
        )
        first, second = read_trace(path, 4)
        assert (first.request.gpus, first.request.share, first.request.eta) == (1, 500, 200)
        assert (first.owner, first.command, first.run) == ("7", "3", 100)
        assert (second.request.gpus, second.request.share, second.request.eta) == (2, 1000, None)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a,b\n1,2\n", "no column id, submit, run, gpus, milli"),
            (HEADER + "\n", "holds no jobs"),
            (HEADER + "\n1,0,x,1,1,1000,0,0,,,\n", "job 1 cannot be read"),
            (HEADER + "\n1,0,5,5,1,1001,0,0,,,\n", "job 1 cannot be read"),
            (HEADER + "\n1,0,5,5,1,1000,0,0,,,\n1,0,5,5,1,1000,0,0,,,\n", "same id"),
        ],
    )
    def test_what_makes_no_sense_is_said(self, tmp_path: Path, text: str, said: str) -> None:
        path = tmp_path / "trace.csv"
        path.write_text(text)
        with pytest.raises(InvalidRequest, match=said):
            read_trace(path, 4)

    def test_a_load_is_a_stretch_of_the_gaps(self) -> None:
        from gpuqueue.simulate.trace import load_of

        assert load_of(scaled_to_load(workload(1), 4, 0.5), 4) == pytest.approx(0.5, rel=0.01)


class TestCommand:
    def _run(self, *args: str) -> str:
        app = typer.Typer()
        app.command()(simulate)
        result = CliRunner().invoke(app, list(args), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def test_it_prints_numbers_and_writes_starts_and_a_picture(self, tmp_path: Path) -> None:
        trace, starts, plot = tmp_path / "t.csv", tmp_path / "starts.csv", tmp_path / "p.svg"
        trace.write_text(lines(workload(3, 60)))
        told = self._run(
            str(trace), "--gpus", "4", "--load", "0.8", "--json",
            "--starts", str(starts), "--plot", str(plot),
        )  # fmt: skip
        found = json.loads(told)
        assert found["jobs"] == 60
        assert found["promises_broken"] == 0
        assert found["load"] == pytest.approx(0.8, rel=0.02)
        with starts.open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 60
        assert set(rows[0]) == {"id", "start", "cards"}
        assert all(set(row["cards"].split(";")) <= set("0123") for row in rows)
        assert plot.read_text().startswith("<svg")
        assert "mean wait" in self._run(str(trace), "--gpus", "4x24G", "--estimates", "learned")

    def test_what_if(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.csv"
        trace.write_text(lines(workload(1)))
        usual = json.loads(self._run(str(trace), "--gpus", "4", "--json"))
        off = ("--set", "reorder_slack=0", "--set", "backfill=false")
        strict = json.loads(self._run(str(trace), "--gpus", "4", "--json", *off))
        assert strict["wait_mean_s"] > usual["wait_mean_s"]

    @pytest.mark.parametrize(
        ("args", "field"),
        [
            (("--set", "slack=1"), "slack"),
            (("--set", "reorder_slack"), "set"),
            (("--set", "reorder_slack=-1"), "--set"),
            (("--estimates", "good"), "estimates"),
            (("--gpus", "many"), "gpus"),
        ],
    )
    def test_what_is_wrong_is_named(
        self, tmp_path: Path, args: tuple[str, ...], field: str
    ) -> None:
        trace = tmp_path / "t.csv"
        trace.write_text(lines(workload(1, 3)))
        with pytest.raises(InvalidRequest) as caught:
            self._run(str(trace), *args)
        assert field in str(caught.value)

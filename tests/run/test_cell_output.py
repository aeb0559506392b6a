"""What is written down of a cell's outputs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuqueue.run import commtraffic
from gpuqueue.run.celloutput import STREAM_LIMIT, Outputs, collapse, without_escapes


def screen(text: str) -> list[str]:
    """Lines as a terminal shows them, with the column of the cursor."""
    lines, line, column = [], "", 0
    for letter in text:
        if letter == "\n":
            lines.append(line)
            line, column = "", 0
        elif letter == "\r":
            column = 0
        else:
            line = line[:column] + letter + line[column + 1 :]
            column += 1
    return [*lines, line, str(column)]


@given(st.text(alphabet="ab\r\n", max_size=30), st.text(alphabet="xy\r\n", max_size=10))
@example("", "\rab\rx")
@example("abc", "d\ra\rbb")
def test_collapsing_shows_the_same(before: str, text: str) -> None:
    assert screen(before + collapse(text) + "!") == screen(before + text + "!")


def test_collapsing_drops_what_is_overwritten() -> None:
    bar = "".join(f"\r{n}/5000 \x1b[32m###\x1b[0m" for n in range(5000))
    assert collapse(bar) == "\r4999/5000 \x1b[32m###\x1b[0m"
    assert collapse("50%\r100%\r\n") == "50%\r100%\r\n"
    moves = "\ra\x1b[A\rb\x1b[A\rc"
    assert collapse(moves) == moves


def test_escapes() -> None:
    text = "\x1b[31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1b[2K"
    assert without_escapes(text) == "red link"


Report = tuple[str, dict[str, Any]]


def take(
    path: Path, log: io.BytesIO, *reports: Report, limit: int = STREAM_LIMIT
) -> list[dict[str, Any]]:
    outputs = Outputs(str(path), log, limit=limit)
    for kind, content in reports:
        buffers = content.pop("buffers", [])
        outputs.take(
            {"type": kind, "content": content, "metadata": {}, "buffers": buffers, "request": "r"}
        )
    outputs.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_outputs_are_nbformats_and_the_log_is_plain(tmp_path: Path) -> None:
    log = io.BytesIO()
    lines = take(
        tmp_path / "outputs.jsonl",
        log,
        ("stream", {"name": "stdout", "text": "\x1b[31mhalf"}),
        ("comm_open", {"comm_id": "x", "data": {"state": {"v": 1}}, "buffers": ["AAE="]}),
        (
            "display_data",
            {
                "data": {
                    "text/plain": "shown",
                    "application/vnd.jupyter.widget-view+json": {"model_id": "m"},
                },
                "metadata": {},
                "transient": {"display_id": "d"},
            },
        ),
        (
            "update_display_data",
            {"data": {"text/plain": "2"}, "metadata": {}, "transient": {"display_id": "d"}},
        ),
        ("clear_output", {"wait": True}),
        ("execute_result", {"data": {"text/plain": "3"}, "metadata": {}, "execution_count": 4}),
        ("error", {"ename": "E", "evalue": "v", "traceback": ["\x1b[1mE\x1b[0m: v"]}),
    )
    assert lines == [
        {"output_type": "stream", "name": "stdout", "text": "\x1b[31mhalf"},
        {
            "output_type": "comm",
            "kind": "comm_open",
            "content": {"comm_id": "x", "data": {"state": {"v": 1}}},
            "metadata": {},
            "buffers": ["AAE="],
            "request": "r",
        },
        {
            "output_type": "display_data",
            "data": {
                "text/plain": "shown",
                "application/vnd.jupyter.widget-view+json": {"model_id": "m"},
            },
            "metadata": {},
            "transient": {"display_id": "d"},
        },
        {
            "output_type": "update_display_data",
            "data": {"text/plain": "2"},
            "metadata": {},
            "transient": {"display_id": "d"},
        },
        {"output_type": "clear_output", "wait": True},
        {
            "output_type": "execute_result",
            "data": {"text/plain": "3"},
            "metadata": {},
            "execution_count": 4,
        },
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[1mE\x1b[0m: v"]},
    ]
    assert log.getvalue().decode() == "half\nshown\n3\nE: v\n"


def test_a_flood_is_bounded_and_says_so(tmp_path: Path) -> None:
    log = io.BytesIO()
    flood = [("stream", {"name": "stdout", "text": f"{n:09}\n"}) for n in range(1000)]
    lines = take(tmp_path / "o", log, *flood, limit=100)
    shown = "".join(line["text"] for line in lines)
    assert shown.startswith("000000000\n")
    assert "9900 characters of text are not shown here" in shown
    assert shown.endswith("000000999\n")
    assert len(shown) < 3000
    assert len(log.getvalue()) == 10_000


def test_of_a_flood_of_widget_states_the_last_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commtraffic, "COMM_LIMIT", 200)

    def update(comm: str, **state: object) -> Report:
        paths = [[name] for name, value in state.items() if value is None]
        data = {"method": "update", "state": state, "buffer_paths": paths}
        return "comm_msg", {"comm_id": comm, "data": data, "buffers": ["AA=="] * len(paths)}

    lines = take(
        tmp_path / "o",
        io.BytesIO(),
        *(update("a", value=n) for n in range(100)),
        update("a", image=None),
        update("b", value="x", msg_id="r"),
        update("c", value=1),
        update("c", value=2),
        ("comm_close", {"comm_id": "c", "data": {}}),
    )
    told = [(line["content"]["comm_id"], line["content"]["data"].get("state")) for line in lines]
    assert len(lines) < 20
    assert told[0] == ("a", {"value": 0})
    # what catches output must come in its place; a state that is final before it is closed
    assert told[-4:] == [
        ("b", {"value": "x", "msg_id": "r"}),
        ("c", {"value": 2}),
        ("c", None),
        ("a", {"value": 99, "image": None}),
    ]
    assert lines[-1]["content"]["data"]["buffer_paths"] == [["image"]]
    assert lines[-1]["buffers"] == ["AA=="]

"""Widgets that a ``%%gpu`` cell makes or uses: live in the notebook, and its own afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook_kernel import Notebook, notebook

from gpuqueue.paths import Home

pytest.importorskip("ipywidgets")

VIEW = "application/vnd.jupyter.widget-view+json"


class Front(Notebook):
    """A notebook whose front end is looked at."""

    def __init__(self, book: Notebook) -> None:
        super().__init__(book._client)
        self.messages: list[dict[str, Any]] = []
        process = self._client.process_message

        def look(msg: dict[str, Any], *rest: Any) -> Any:
            self.messages.append(msg)
            return process(msg, *rest)

        self._client.process_message = look

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [msg for msg in self.messages if msg["msg_type"] == kind]

    def state(self, value: str) -> dict[str, Any]:
        """The front end's state of the widget that an expression means."""
        model = self.ok(f"print(({value}).model_id, end='')").stream()
        return dict(self._client.widget_state[model])

    def say(self, value: str, **data: Any) -> Any:
        """What happens in the kernel when the front end says something to a widget."""
        model = self.ok(f"print(({value}).model_id, end='')").stream()
        kc = self._client.kc
        assert kc is not None
        msg = kc.session.msg("comm_msg", {"comm_id": model, "data": data})
        kc.shell_channel.send(msg)


@pytest.fixture
def front(home: Home, tmp_path: Path) -> Iterator[Front]:
    with notebook(tmp_path / "work") as made:
        yield Front(made)


def test_a_bar_moves_while_the_cell_runs(front: Front) -> None:
    pytest.importorskip("tqdm")
    ran = front.gpu(
        "from tqdm.notebook import tqdm\n"
        "for i in tqdm(range(40), desc='steps', mininterval=0): pass\n"
    )
    assert ran.error is None
    opened = front.of("comm_open")
    assert {msg["content"]["target_name"] for msg in opened} == {"jupyter.widget"}
    shown = [o for o in ran.outputs if o.output_type == "display_data"]
    assert len(shown) == 1
    box = shown[0].data[VIEW]["model_id"]
    kinds = [msg["msg_type"] for msg in front.messages]
    assert kinds.index("comm_open") < kinds.index("display_data")
    # the bar is the box's second child: it went through all its values, and is where it ends
    states = front._client.widget_state
    bar = states[box]["children"][1].removeprefix("IPY_MODEL_")
    seen = [
        msg["content"]["data"]["state"]["value"]
        for msg in front.of("comm_msg")
        if msg["content"]["comm_id"] == bar and "value" in msg["content"]["data"]["state"]
    ]
    assert seen == [float(n) for n in range(1, 41)]
    assert (states[bar]["value"], states[bar]["bar_style"]) == (40, "success")
    # all of it belongs to the cell that was run
    requests = {
        msg["parent_header"]["msg_id"] for msg in front.messages if "comm" in msg["msg_type"]
    }
    assert len(requests) == 1


def test_a_widget_is_the_notebooks_own_afterwards(front: Front) -> None:
    front.gpu(
        "import ipywidgets as w\n"
        "s = w.IntSlider(value=3)\n"
        "s.value = 5\n"
        "seen = []\n"
        "s.observe(lambda change: seen.append(change['new']), 'value')\n"
        "box = w.HBox([s, w.Label('x')])\n"
        "box"
    )
    assert front.ok("s.value, box.children[0] is s, seen").result == "(5, True, [])"
    # from the kernel to the front end, and from there to the kernel
    front.ok("s.value = 7")
    assert front.state("s")["value"] == 7
    front.say("s", method="update", state={"value": 9}, buffer_paths=[])
    assert front.ok("s.value, seen").result == "(9, [7, 9])"


def test_a_widget_goes_into_a_job_and_comes_back_itself(front: Front) -> None:
    front.ok("import ipywidgets as w\nbar = w.FloatProgress(); same = [bar]; seen = []")
    front.gpu("bar.value = 30\nbar.observe(lambda c: seen.append(c['new']), 'value')")
    assert front.state("bar")["value"] == 30
    assert front.ok("bar.value, same[0] is bar").result == "(30.0, True)"
    front.ok("bar.value = 40")
    assert front.state("bar")["value"] == 40
    assert front.ok("seen").result == "[40.0]"
    front.gpu("bar.close()")
    assert front.ok("bar.comm is None").result == "True"
    assert len(front.of("comm_close")) == 1


def test_an_output_widget_catches_what_the_job_writes(front: Front) -> None:
    front.gpu("import ipywidgets as w\nout = w.Output()\nwith out: print('one')\nprint('two')")
    ran = front.gpu("with out: print('three'); display(4)\nprint('five')")
    assert ran.stream() == "five\n"
    texts = [o.get("text") or o["data"]["text/plain"] for o in front.state("out")["outputs"]]
    assert texts == ["one\nthree\n", "4"]
    assert front.ok("len(out.outputs)").result == "2"


def test_interact_goes_on_in_the_notebook(front: Front) -> None:
    front.ok("calls = []")
    front.gpu(
        "from ipywidgets import interactive\ndef note(x): calls.append(x)\n"
        "ui = interactive(note, x=(0, 10))\nui"
    )
    assert front.ok("calls").result == "[5]"
    front.say("ui.children[0]", method="update", state={"value": 8}, buffer_paths=[])
    assert front.ok("calls, ui.kwargs").result == "([5, 8], {'x': 8})"


def test_what_cannot_come_stays_as_a_picture(front: Front) -> None:
    ran = front.gpu(
        "import ipywidgets as w, threading\n"
        "s = w.IntSlider(value=4)\n"
        "s.guard = threading.Lock()\n"
        "model = s.model_id\n"
        "s"
    )
    assert ran.outputs[0].data[VIEW]["model_id"] in front._client.widget_state
    assert "guard" in ran.stream("stderr")
    front.ok("from types import SimpleNamespace as N; old = N(model_id=model)")
    front.say("old", method="update", state={"value": 6}, buffer_paths=[])
    # a page that is loaded anew asks for the state
    front.messages.clear()
    kc = front._client.kc
    assert kc is not None
    front.say("old", method="request_state")
    front.ok("manager = get_ipython().kernel.comm_manager\nmodel in manager.comms")
    picture = front.ok("manager.comms[model]._msg_callback._state['value']")
    assert picture.result == "6"


def test_a_comm_of_ones_own_and_its_buffers(front: Front) -> None:
    front.gpu(
        "import comm\n"
        "c = comm.create_comm(target_name='mine', data={'hello': 1}, buffers=[b'\\x00\\xff'])\n"
        "c.send({'more': 2}, buffers=[b'ab', b'c'])\n"
        "said = []\n"
        "c.on_msg(lambda msg: said.append(msg['content']['data']))"
    )
    (opened,) = front.of("comm_open")
    assert opened["content"]["data"] == {"hello": 1}
    assert [bytes(one) for one in opened["buffers"]] == [b"\x00\xff"]
    (more,) = front.of("comm_msg")
    assert [bytes(one) for one in more["buffers"]] == [b"ab", b"c"]
    front.ok("c.model_id = c.comm_id")
    front.say("c", back=3)
    assert front.ok("said").result == "[{'back': 3}]"


def test_outputs_that_are_shown_again_open_nothing_twice(front: Front) -> None:
    front.gpu("import ipywidgets as w\ns = w.IntSlider(value=4)\ns")
    before = len(front.of("comm_open"))
    ran = front.ok("%gpu logs 1")
    assert VIEW in ran.outputs[0].data
    assert len(front.of("comm_open")) == before


def test_in_the_background(front: Front) -> None:
    front.ok("%%gpu --bg\nimport ipywidgets as w\ns = w.IntSlider(value=4)\ns.value = 6")
    front.ok("%gpu wait 1")
    front.ok("%gpu pull 1")
    assert front.ok("s.value").result == "6"
    front.ok("s.value = 8")
    assert front.state("s")["value"] == 8

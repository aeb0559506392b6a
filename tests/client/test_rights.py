"""Who counts as the person at the machine."""

import pytest

from gpuqueue.client.rights import MARKERS, Scope, require_person, scope_of
from gpuqueue.errors import NotYours


@pytest.mark.parametrize("name", MARKERS)
def test_what_an_agent_starts_is_an_agent_s(name):
    assert scope_of({name: "1"})[0] is Scope.AGENT
    assert name in scope_of({name: "1"})[1]
    assert scope_of({name: ""})[0] is Scope.PERSON
    with pytest.raises(NotYours, match=name):
        require_person("free", {name: "1"})


def test_a_job_is_nobody_s_hand():
    assert scope_of({"GPUQUEUE_ATTEMPT_DIR": "/x", "GPUQUEUE_JOB_ID": "3"}) == (Scope.JOB, "job 3")


def test_somebody_who_has_logged_in_is_a_person():
    assert scope_of({"CLAUDECODE": "1"}, browser=True)[0] is Scope.PERSON
    require_person("free", {"CLAUDECODE": "1"}, browser=True)
    require_person("free", {"HOME": "/root", "AGENT": "ssh"})

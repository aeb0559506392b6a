"""``openapi.yaml`` and the handlers say the same, both ways."""

from gpuqueue_jupyter.freeing import ROUTES as FREEING
from gpuqueue_jupyter.handlers import ROUTES
from openapi_spec_validator import validate
from server_fixtures import SPEC

from gpuqueue.client import OPTIONS
from gpuqueue.model import JobKind, JobState, Preset

VERBS = ("get", "post", "put", "patch", "delete", "head")


def test_the_description_is_valid() -> None:
    validate(SPEC)


def test_every_verb_is_described_and_every_description_has_its_verb() -> None:
    routes = (*ROUTES, *FREEING)
    there = {(path, verb) for path, handler in routes for verb in VERBS if verb in vars(handler)}
    described = {
        (path, verb) for path, item in SPEC["paths"].items() for verb in VERBS if verb in item
    }
    assert there == described


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [
        item[verb]["operationId"]
        for item in SPEC["paths"].values()
        for verb in VERBS
        if verb in item
    ]
    assert len(names) == len(set(names))


def test_the_words_are_those_of_the_model() -> None:
    schemas = SPEC["components"]["schemas"]
    assert schemas["State"]["enum"] == list(JobState)
    assert schemas["Job"]["properties"]["kind"]["enum"] == list(JobKind)
    options = schemas["Options"]["properties"]
    assert set(options) == set(OPTIONS)
    assert options["preset"]["enum"][:-1] == list(Preset)

import tomllib

import pytest

from gpuqueue.errors import InvalidRequest
from gpuqueue.settings import Settings, SettingsFile, load_settings, render_settings


def test_no_file_is_a_valid_file(tmp_path):
    assert load_settings(tmp_path / "none.toml").as_dict() == Settings().as_dict()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slots = [", "TOML"),
        ("slot = 3", "slot"),
        ("slots = 'many'", "slots"),
        ("slots = -1", "slots"),
        ("gpu_free_perc = 101", "gpu_free_perc"),
        ("log_limit = 'much'", "log_limit"),
        ("spare_memory = 'much'", "spare_memory"),
        ("spare_kernels = -1", "spare_kernels"),
        ("spare_idle = 'long'", "spare_idle"),
        ("cell_text_limit = 'long'", "cell_text_limit"),
        ("cell_result_limit = -1", "cell_result_limit"),
        ("cell_result_limit = '15M'", "cell_result_limit.*16M"),
        ("cell_failed_result_limit = '3 cows'", "cell_failed_result_limit"),
        ("gpus = ['a']", "gpus"),
        ("packing = 3", "packing"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, words):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=words):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lend_after = -3", "lend_after: -3 in {} is not a number of at least 1"),
        ("lend_after = 'foo'", "lend_after: 'foo' in {} is not a number of at least 1"),
        ("lend = 'al'", "lend: 'al' in {} is not one of all, preemptible, off"),
        ("slots = 0.5", "slots: 0.5 in {} is not a whole number of at least 0"),
        ("gpu_free_perc = 101",
         "gpu_free_perc: 101 in {} is not a whole number of at least 0 and of at most 100"),
        ("packing = 'no'", "packing: 'no' in {} is not true or false"),
        ("packing = true\nkernel_memory = 3", "kernel_memory: 3 in {} is not a text in quotes"),
    ],
)  # fmt: skip
def test_it_says_what_may_stand_there(tmp_path, text, words):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as told:
        load_settings(path)
    assert str(told.value) == words.format(path)


def test_a_bad_change_leaves_the_settings_as_they_were(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("slots = 3")
    file = SettingsFile(path)
    assert file.current.slots == 3
    path.write_text("slots = = 4")
    assert file.refresh()
    assert file.current.slots == 3
    assert "stay as they were" in file.warning
    assert not file.refresh()
    path.write_text("slots = 44")
    assert file.refresh()
    assert (file.current.slots, file.warning) == (44, "")
    path.unlink()
    file.refresh()
    assert file.current.slots == 0


def test_the_rendered_file_parses_and_changes_nothing(tmp_path):
    text = render_settings(Settings(), ("GPU 0: a card",))
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert load_settings(path).as_dict() == Settings().as_dict()
    bare = "\n".join(
        line[2:] for line in text.splitlines() if line.startswith("# ") and " = " in line
    )
    assert set(tomllib.loads(bare)) == set(Settings().as_dict())
    assert all(Settings().trait_metadata(name, "help") for name in Settings().trait_names())

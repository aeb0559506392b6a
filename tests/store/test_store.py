import sqlite3
import threading
from dataclasses import replace

import pytest
from conftest import until

from gpuqueue.errors import StateDirectoryError, StateLocked, StateVersionError, UnknownJob
from gpuqueue.model import (
    Grant,
    IntentKind,
    JobKind,
    JobState,
    Origin,
    Placement,
    Preset,
    ProcessId,
    Request,
)
from gpuqueue.store import Draft, Sought, Store
from gpuqueue.store import jobs as store_jobs
from gpuqueue.store.schema import MIGRATIONS, VERSION


def draft(**changes):
    values = {
        "kind": JobKind.SCRIPT,
        "request": Request(),
        "tag": "t",
        "owner": "o",
        "command": "true",
        "cwd": "/",
        "origin": Origin("python", "", "s"),
        "spec": "{}",
    }
    return Draft(**(values | changes))


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "state.db")
    yield made
    made.close()


def add(store, *drafts):
    return store.submit(drafts or [draft()], lambda index, job_id: None)


def test_a_job_comes_back_as_it_was_submitted(store):
    request = Request(
        preset=Preset.TWO, gpus=3, share=250, memory=2**40, slots=1, eta=7.5, priority=-2,
        after=(), restartable=True,
    )  # fmt: skip
    (job,) = add(store, draft(request=request, tag="ü 'x'", key="k"))
    assert store.job(job.id) == job
    assert job.request == request
    assert job.state is JobState.QUEUED


def test_submit_is_all_or_nothing(store):
    def place(index, job_id):
        if index == 1:
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        store.submit([draft(), draft()], place)
    assert store.jobs() == []
    assert store.events() == []


def test_parents_must_exist(store):
    with pytest.raises(UnknownJob, match="after"):
        add(store, draft(request=Request(after=(99,))))
    assert store.jobs() == []


def test_front_is_above_every_waiting_job(store):
    add(store, draft(request=Request(priority=4)))
    (job,) = add(store, draft(to_front=True))
    assert job.request.priority == 5


def test_a_key_stands_for_one_job_until_it_failed(store):
    (first,) = add(store, draft(key="k"))
    (again,) = add(store, draft(key="k"))
    assert again.id == first.id
    with store.transaction() as db:
        store.move(db, first, replace(first, state=JobState.FAILED), "ended", 1.0)
    (new,) = add(store, draft(key="k"))
    assert new.id != first.id


def test_moves_are_recorded_with_their_event_and_ended_jobs_stay_ended(store):
    (job,) = add(store)
    placement = Placement((Grant("FAKE-0", 1000, 10, whole=True),), 2)
    running = replace(
        job, state=JobState.RUNNING, placement=placement, process=ProcessId(1, 2, "b"), attempt=1
    )
    with store.transaction() as db:
        store.move(db, job, running, "started", 2.0)
    assert store.job(job.id) == running
    ended = replace(running, state=JobState.SUCCEEDED, returncode=0, ended=3.0)
    with store.transaction() as db:
        store.move(db, running, ended, "ended", 3.0)
    with pytest.raises(StateDirectoryError), store.transaction() as db:
        store.move(db, ended, running, "started", 4.0)
    assert store.job(job.id).state is JobState.SUCCEEDED
    assert [event.kind for event in store.events(job_id=job.id)] == [
        "submitted",
        "started",
        "ended",
    ]
    assert store.spec(job.id) == "{}"  # what was submitted stays, for another try


def test_a_spec_that_is_in_a_file_leaves_the_store_with_the_end(store):
    (job,) = add(store, draft(kind=JobKind.CELL))
    ended = replace(job, state=JobState.CANCELLED, ended=3.0)
    with store.transaction() as db:
        store.move(db, job, ended, "ended", 3.0)
    assert store.spec(job.id) is None


def test_intents_are_kept_until_done(store):
    (job,) = add(store)
    number = store.intend(IntentKind.CANCEL, [job.id])[0]
    (intent,) = store.open_intents()
    with store.transaction() as db:
        store.finish_intent(db, intent, 5.0, "no")
    assert store.open_intents() == []
    assert store.intent(number).error == "no"


def test_the_file_is_private(store):
    assert store.path.stat().st_mode & 0o077 == 0


def test_paging_and_filters(store):
    ids = [job.id for job in add(store, *[draft(owner=f"o{i % 2}") for i in range(10)])]
    assert [job.id for job in store.jobs(limit=3)] == ids[:-4:-1]
    assert [job.id for job in store.jobs(before=ids[3])] == ids[2::-1]
    assert {job.owner for job in store.jobs(owner="o1")} == {"o1"}
    assert store.jobs(states=["running"]) == []
    assert store.counts() == {"queued": 10}


def test_a_lock_held_elsewhere_delays_and_is_told_once(tmp_path):
    told = []
    store = Store(tmp_path / "state.db", on_wait=told.append)
    other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    jobs = []
    thread = threading.Thread(target=lambda: jobs.extend(add(store)))
    thread.start()
    until(lambda: told)
    assert Store(tmp_path / "state.db").jobs() == []  # readers do not wait
    other.execute("ROLLBACK")
    thread.join()
    assert len(jobs) == 1
    assert len(told) == 1
    assert str(store.path) in told[0]


def test_a_lock_held_for_too_long_is_an_error_that_names_the_file(tmp_path):
    store = Store(tmp_path / "state.db", patience=0.1)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StateLocked, match=r"state\.db"):
        add(store)


def test_a_newer_state_is_refused_and_not_touched(tmp_path):
    path = tmp_path / "state.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StateVersionError, match="newer"):
        Store(path)
    assert path.read_bytes() == before


def test_an_older_state_is_migrated_with_a_copy(tmp_path, monkeypatch):
    path = tmp_path / "state.db"
    store = Store(path)
    (job,) = add(store)
    store.close()
    monkeypatch.setattr(
        "gpuqueue.store.schema.MIGRATIONS", (*MIGRATIONS, "ALTER TABLE jobs ADD COLUMN more TEXT")
    )
    monkeypatch.setattr("gpuqueue.store.schema.VERSION", VERSION + 1)
    store = Store(path)
    assert store.job(job.id) == job
    kept = path.with_name(f"state.db.v{VERSION}.bak")
    with sqlite3.connect(kept) as db:
        assert db.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    store.close()


def test_a_migration_that_fails_leaves_the_old_version(tmp_path, monkeypatch):
    path = tmp_path / "state.db"
    Store(path).close()
    monkeypatch.setattr(
        "gpuqueue.store.schema.MIGRATIONS",
        (*MIGRATIONS, "ALTER TABLE jobs ADD COLUMN more TEXT; ALTER TABLE nowhere ADD COLUMN x"),
    )
    monkeypatch.setattr("gpuqueue.store.schema.VERSION", VERSION + 1)
    with pytest.raises(StateDirectoryError):
        Store(path)
    monkeypatch.undo()
    store = Store(path)
    assert store.jobs() == []
    store.close()


def test_many_threads_submit_at_once(tmp_path):
    stores = [Store(tmp_path / "state.db") for _ in range(4)]
    threads = [threading.Thread(target=lambda s=s: [add(s) for _ in range(25)]) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs = stores[0].jobs(limit=1000)
    assert sorted(job.id for job in jobs) == list(range(1, 101))


def test_what_has_ended_comes_by_its_end_in_pages_and_with_words(store):
    jobs = add(store, *[draft(tag=f"{'even' if i % 2 else 'odd'}-{i}") for i in range(6)])
    ends = [30.0, 20.0, None, 20.0, 40.0, 10.0]
    with store.transaction() as db:
        for job, at in zip(jobs, ends, strict=True):
            if at is not None:
                state = JobState.FAILED if at == 10.0 else JobState.SUCCEEDED
                store.move(db, job, replace(job, state=state, ended=at), "ended", at)
    numbers = [job.id for job in jobs]
    order = [numbers[at] for at in (4, 0, 3, 1, 5)]  # of one moment the newest first
    assert [job.id for job in store.jobs(ended=True)] == order
    assert [job.id for job in store.jobs(ended=True, limit=2)] == order[:2]
    assert [job.id for job in store.jobs(ended=True, before=order[1], limit=2)] == order[2:4]
    assert [job.id for job in store.jobs(ended=True, states=["failed"])] == order[4:]
    even = Sought.of("even", None)
    assert [job.id for job in store.jobs(ended=True, sought=even, limit=2)] == order[2:4]
    assert [job.id for job in store.jobs(ended=True, sought=even, before=order[2])] == order[3:]


def test_words_are_looked_for_beyond_the_first_thousands(store, monkeypatch):
    monkeypatch.setattr(store_jobs, "_CHUNK", 2)
    jobs = add(store, *[draft(tag=f"t-{i}") for i in range(7)])
    with store.transaction() as db:
        for job in jobs:
            after = replace(job, state=JobState.SUCCEEDED, ended=100.0 - job.id)
            store.move(db, job, after, "ended", 100.0)
    (last,) = store.jobs(ended=True, sought=Sought.of("t-6", None))
    assert last.id == jobs[6].id
    (first,) = store.jobs(sought=Sought.of("t-0", None))
    assert first.id == jobs[0].id

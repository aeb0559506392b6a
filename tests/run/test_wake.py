import threading

from gpuqueue.run.wake import Doorbell, listened_to, ring


def test_lines_arrive_in_order_and_wake(tmp_path):
    path = tmp_path / ("ü" * 60) / ("long" * 40)  # longer than a socket's path may be
    path.parent.mkdir()
    bell = Doorbell(path)
    assert bell.wait(0) == []
    thread = threading.Thread(target=lambda: [ring(path, f"line {i}") for i in range(100)])
    thread.start()
    lines = []
    while len(lines) < 100:
        lines += bell.wait(10)
    thread.join()
    assert lines == [f"line {i}" for i in range(100)]
    bell.close()


def test_nobody_there_is_told(tmp_path):
    path = tmp_path / "bell"
    assert not ring(path, "x")
    bell = Doorbell(path)
    assert listened_to(path)
    assert ring(path, "x")
    bell.close()
    assert not listened_to(path)
    assert not ring(path, "x")
    again = Doorbell(path)
    assert again.wait(0) == []  # what nobody heard is not heard later
    again.close(remove=True)
    assert not path.exists()


def test_a_full_pipe_is_no_error(tmp_path):
    path = tmp_path / "bell"
    bell = Doorbell(path)
    for _ in range(5000):
        assert ring(path, "a long line to fill the pipe with")
    assert bell.wait(0)
    bell.close()


def test_something_else_in_its_place_is_replaced(tmp_path):
    path = tmp_path / "bell"
    path.write_text("a file")
    bell = Doorbell(path)
    assert ring(path, "x")
    bell.close()

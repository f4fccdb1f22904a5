import json
import os
import threading

from stallwatch.formats import py_spy
from stallwatch.hook.stacks import stacks_json


def test_stacks_read_as_those_of_py_spy_innermost_first() -> None:
    reached, end = threading.Event(), threading.Event()

    def next_batch() -> None:
        reached.set()
        end.wait(20)

    thread = threading.Thread(target=next_batch, name="loader")
    thread.start()
    reached.wait(20)
    stacks = py_spy.parse(stacks_json(), "stacks.json")
    end.set()
    thread.join()
    by_name = {stack.name: stack for stack in stacks.threads}
    loader = by_name["loader"]
    functions = [frame.name.rpartition(".")[2] for frame in loader.frames]
    assert functions.index("next_batch") < functions.index("run")
    assert loader.frames[functions.index("next_batch")].filename == __file__
    assert (loader.os_thread_id, loader.ident, loader.pid) == (thread.native_id, thread.ident, os.getpid())
    assert by_name["MainThread"].active, "it makes the stacks"


def test_thread_that_python_did_not_start_is_there_without_a_name() -> None:
    reached, end = threading.Event(), threading.Event()
    import _thread

    def wait() -> None:
        reached.set()
        end.wait(20)

    ident = _thread.start_new_thread(wait, ())
    reached.wait(20)
    threads = json.loads(stacks_json())
    end.set()
    (mine,) = [thread for thread in threads if thread["thread_id"] == ident]
    assert (mine["thread_name"], mine["os_thread_id"]) == (None, None)

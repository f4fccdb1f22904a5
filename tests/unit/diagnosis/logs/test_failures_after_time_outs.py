"""What a rank raises after others have waited in vain: by whom they waited for, and by what is raised."""

import pytest

from tests.builders.texts import PEER_LOST, RAISED, dump_signal, marked, ranked, timed_out, told, verdict

BEFORE, AT, SOON = "2026-11-20T08:15:31Z ", "2026-11-20T08:15:32Z ", "2026-11-20T08:16:31Z "
OWN = (
    "ValueError: shard 17 is empty",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/17.tar'",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "ZeroDivisionError: float division by zero",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='data.example.org', port=443): Max retries exceeded",
    "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",
)
OF_OTHERS = (
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:3, remote process exited or there was a network error",
    "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:18849.",
    "RuntimeError: DataLoader worker (pid 37) is killed by signal: Terminated.",
    "RuntimeError: CUDA error: unspecified launch failure",
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.0.0.2', port=8000): Max retries exceeded",
    "httpx.ConnectError: All connection attempts failed for https://localhost:8443",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "TimeoutError: rank 0 has not written /tmp/ready",
    "queue.Empty",
    "RuntimeError: the engine has died",
)  # fmt: skip


def raised(text: str, rank: int) -> str:
    return ranked(RAISED.replace("ValueError: shard 17 is empty", text), rank)


def waits(*ranks: int, name: str = "default_pg", step: int = 1, seq: int = 71) -> str:
    number = 0 if name == "default_pg" else 4
    return "".join(
        timed_out("2.6", rank, seq, place=place if step > 1 else rank, name=name, number=number)
        for place, rank in enumerate(ranks)
    )


@pytest.mark.parametrize("text", OWN)
def test_the_only_one_that_did_not_wait_is_whom_the_others_waited_for(text: str) -> None:
    others, late = marked(waits(0, 1, 2), BEFORE), marked(raised(text, 3), SOON)
    assert told(others + late) == ("rank_raised", (3,))
    assert told(others, late) == ("rank_raised", (3,))
    found = verdict(others + late)
    assert found.waiting == "0-2"
    assert text.split(":")[0] in found.summary


def test_all_that_did_not_wait_and_failed_alike_are_named() -> None:
    late = marked(raised(OWN[1], 2) + raised(OWN[1], 3), SOON)
    assert told(marked(waits(0, 1), BEFORE) + late) == ("rank_raised", (2, 3))


@pytest.mark.parametrize("text", OWN)
def test_who_enqueued_less_and_raised_is_whom_the_others_waited_for(text: str) -> None:
    others = marked(waits(4, 5, 7, name="dp", step=2) + dump_signal("2.6", 6, 70).replace("default_pg", "dp"), BEFORE)
    others = others.replace("PG ID 0 PG GUID 0(dp)", "PG ID 4 PG GUID 4(dp)")
    assert told(others + marked(raised(text, 6), SOON)) == ("rank_raised", (6,))


@pytest.mark.parametrize("text", [*OWN, *OF_OTHERS])
def test_who_waited_as_well_is_not_to_blame_for_what_it_raised_then(text: str) -> None:
    """A rank that goes on after its time-out reads what was never reduced."""
    waiting, late = waits(0, 1, 2, 3), raised(text, 3)
    assert told(marked(waiting, BEFORE) + marked(late, SOON))[1] == ()
    assert told(waiting + late)[1] == ()
    assert told(*(waits(rank) + (late if rank == 3 else "") for rank in range(4)))[1] == ()


@pytest.mark.parametrize("text", OF_OTHERS)
def test_what_others_ends_may_do_accuses_nobody(text: str) -> None:
    assert told(marked(waits(0, 1, 2), BEFORE) + marked(raised(text, 3), SOON))[1] == ()


@pytest.mark.parametrize("text", OWN)
def test_where_another_is_not_heard_of_it_may_be_whom_all_waited_for(text: str) -> None:
    late = marked(raised(text, 3), SOON)
    assert told(marked(waits(0, 1, 4), BEFORE) + late)[1] == ()  # rank 2
    entered = marked(waits(0, 1, 2) + dump_signal("2.6", 3, 71), BEFORE)
    assert told(entered + late)[1] == ()  # it had come
    elsewhere = marked(waits(0, 1, name="tp", step=2), BEFORE)
    assert told(elsewhere + late)[1] == ()  # it is no member of that group
    both = marked(waits(0, 1, 2) + waits(3, 4, name="tp", step=2, seq=9), BEFORE)
    assert told(both + late)[1] == ()  # it waited elsewhere


def test_who_enqueued_less_and_raised_nothing_is_named_before_who_raised() -> None:
    others = marked(waits(0, 1) + dump_signal("2.6", 2, 70) + dump_signal("2.6", 3, 70), BEFORE)
    assert told(others + marked(raised(OWN[0], 3), SOON)) == ("not_entered", (2, 3))


def test_an_exception_of_gloo_s_waiters_is_none_of_the_one_that_did_not_wait() -> None:
    timed = PEER_LOST.replace("Connection closed by peer [10.0.0.2]:18849.", "Timed out waiting 1800000ms for recv "
                              "operation to complete")  # fmt: skip
    waiting = "".join(ranked(timed, rank) for rank in (0, 1, 3))
    assert told(marked(waiting, BEFORE) + marked(raised(OWN[0], 2), SOON)) == ("rank_raised", (2,))
    assert told(marked(waiting, BEFORE) + marked(raised(OWN[0], 3), SOON))[1] == ()


def test_what_a_rank_raised_before_it_waited_in_its_clean_up_is_the_cause() -> None:
    """Python prints a traceback when the `finally` is done, which waits for all the others."""
    clean_up = timed_out("2.6", 3, 71, "BARRIER")
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n" + PEER_LOST
    log = waits(0, 1, 2) + clean_up + raised(OWN[0], 3) + ranked(chained, 3)
    assert told(log) == ("rank_raised", (3,))


_LEFT = RAISED.replace("ValueError: shard 17 is empty", "lightning.pytorch.utilities.exceptions.SIGTERMException")
_WAIT = "".join(timed_out("2.6", rank, 812) for rank in (1, 2, 3))


def test_who_left_at_a_signal_before_others_waited_is_whom_they_wait_for() -> None:
    """Lightning#20806: ranks see a SIGTERM at different steps. One that ends a job which stands is no cause."""
    found = verdict(ranked(_LEFT, 0) + _WAIT)
    assert (found.cause, found.culprits, found.waiting) == ("rank_raised", (0,), "1-3")
    assert "flag" in found.next_steps[0]
    assert told(_WAIT + ranked(_LEFT, 0)) == ("undecided", ())
    assert told(ranked(_LEFT, 0)) == ("job_ended", ())

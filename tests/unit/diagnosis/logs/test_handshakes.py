"""What NCCL says of connections that are not what it waits for: no line names its own rank."""

import pytest

from tests.builders.texts import PEER_LOST, RAISED, ranked, told, verdict

NODE = "n3:1226:{pid} [{gpu}] "
STEPS = "".join(f"step {number}/100 loss 0.1\n" for number in range(8))
# HTTP's "GET /met", little endian; 2.18, 2.27, 2.30.7, 2.32.3.
STRANGERS = (
    "misc/socket.cc:484 NCCL WARN socketFinalizeAccept: wrong magic 74656d2f20544547 != 7970663b906d70b9",
    "NCCL INFO socketFinalizeAccept: didn't receive a valid magic from 10.0.0.7<41234>",
    "NCCL INFO socketFinalizeAccept from 10.0.0.7<41234>: socket magic mismatch (peer 0x74656d2f20544547 != expected "
    "0x564ab9f2fc4b9d6c), discarding peer connection",
    "NCCL INFO Socket magic mismatch from 10.0.0.7<41234> (peer 0x74656d2f20544547 != expected 0x564ab9f2fc4b9d6c), "
    "discarding peer connection",
    "NCCL INFO Peer 10.0.0.7<41234> closed before socket hello, discarding",
    "NCCL INFO Handshake receive from 10.0.0.7<41234> failed, discarding peer connection",
    "NCCL INFO socketFinalizeAccept: peer 10.0.0.7<41234> closed before magic handshake, discarding",
)
UNFIT = {
    "misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3": "different networks",
    "misc/socket.cc:533 NCCL WARN socketFinalizeAccept from 10.0.0.7<41234>: wrong type 3 != 4": "different networks",
    "NCCL INFO socketFinalizeAccept from 10.0.0.7<41234>: wrong socket type (peer 2 != expected 1 -- peer connected to "
    "wrong NCCL socket), discarding peer connection": "proxy where bootstrap was awaited",
    "NCCL INFO Wrong socket type from 10.0.0.7<41234> (peer 3 != expected 4 -- peer connected to wrong NCCL socket), "
    "discarding peer connection": "different networks",
    "bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4": "pieces of unlike size",
    "bootstrap.cc:126 NCCL WARN Bootstrap Root : mismatch in rank count from procs 6 : 3": "count its ranks",
    "bootstrap.cc:312 NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 16 vs 8, nroots 1 vs 1": "count "
    "its ranks",
    "bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already checked in": "as its rank 3",
}
RAISES = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 31, in main\n'
    "    dist.barrier()\n"
    "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, internal error - please report "
    "this issue to the NCCL developers, NCCL version 2.21.5\n"
    "ncclInternalError: Internal check failed.\n"
    "Last error:\n"
)


@pytest.mark.parametrize("line", STRANGERS)
def test_a_stranger_at_a_port_is_told_and_blames_nobody(line: str) -> None:
    said = "".join(NODE.format(pid=pid, gpu=0) + line + "\n" for pid in (2011, 2012))
    found = verdict(STEPS + said)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "ip_local_reserved_ports" in found.next_steps[0]
    assert told(said + STEPS + ranked(RAISED, 1)) == ("rank_raised", (1,))
    assert told(said + STEPS + "Training completed.\n") == ("job_ended", ())


def test_who_the_stranger_is_by_its_first_bytes() -> None:
    said = verdict(STEPS + NODE.format(pid=9, gpu=0) + STRANGERS[0] + "\n")
    assert "GET /met" in str(said.next_steps) + str(said.because)
    unknown = STRANGERS[0].replace("74656d2f20544547", "1f")
    assert "scanner" in str(verdict(STEPS + NODE.format(pid=9, gpu=0) + unknown + "\n"))


@pytest.mark.parametrize("line", UNFIT)
def test_ranks_that_do_not_fit_together_are_told_and_not_the_one_that_says_it(line: str) -> None:
    said = NODE.format(pid=2011, gpu=0) + line + "\n"
    found = verdict(said)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert line.partition(": ")[2][:20] in str(found.because)
    lost = ranked(PEER_LOST, 0) + ranked(PEER_LOST, 3)
    for raised in (ranked(RAISES + line.rpartition("WARN ")[2] + "\n", 1), said + ranked(RAISES + "\n", 1)):
        found = verdict(lost + raised)
        assert found.culprits == (), found.summary
        assert UNFIT[line] in str(found.next_steps) + str(found.because) + found.summary, found


def test_an_exception_of_the_job_s_own_about_a_wrong_type_is_its_rank_s() -> None:
    own = RAISED.replace("ValueError: shard 17 is empty", "TypeError: wrong type 3 != 4")
    assert told(ranked(own, 2) + ranked(PEER_LOST, 0)) == ("rank_raised", (2,))

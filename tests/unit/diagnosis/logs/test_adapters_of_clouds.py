"""What NCCL's plug-in and libfabric print of EFA, Amazon's network adapter: a way that failed, or one never opened."""

from tests.builders.texts import RAISED, ranked, timed_out, told, verdict

_AT = "ip-10-0-0-1:{0}:{0} [0] "
_FAILED = (
    f"{_AT}ofi_process_cq:1033 NCCL WARN NET/OFI Request 0x7f0f0c0001e8 completed with error. RC: 21. Error: unknown "
    "error. Completed length: 0, Request: {{ buffer_index: 255, dev: 0, size: 0, state: CREATED }}\n"
)
_WARNS = (
    "libfabric:4517:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA "
    "addr: fi_addr_efa://[fe80::13]:0:107 My host id: i-0db7083f Peer EFA addr: fi_addr_efa://[fe80::b8]:0:94 Peer "
    "host id: i-0ce6d3d5 (7)\n"
)
_NOT_OPENED = (
    f"{_AT}create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument\n"
)
_NO_PROVIDER = f"{_AT}nccl_net_ofi_init:1 NCCL WARN NET/OFI Only EFA provider is supported\n"


def test_a_message_that_failed_on_its_way_accuses_neither_end() -> None:
    found = verdict(_FAILED.format(462) + _FAILED.format(463))
    assert (found.cause, found.culprits) == ("fabric_fault", ())
    assert any("way between" in fact.fact for fact in found.because)
    assert "efa" in found.next_steps[0]


def test_what_libfabric_warns_of_is_told_and_decides_nothing() -> None:
    """It warns as peers close, too, when a job is over."""
    assert told(3 * _WARNS) == ("undecided", ())
    assert "efa" in verdict(3 * _WARNS).next_steps[0]
    assert told("training finished\n" + _WARNS)[0] in ("job_ended", "undecided")
    assert told(_WARNS + timed_out("2.6", 0, 7) + timed_out("2.6", 1, 7)) == ("undecided", ())


def test_who_could_not_open_its_adapter_is_whom_the_others_wait_for() -> None:
    tagged = f"[1,23]<stdout>:{_NOT_OPENED.format(9)}[1,31]<stdout>:ip-10-0-0-2:8:8 [7] NCCL INFO NET/OFI No NIC info\n"
    assert told(tagged) == ("rank_raised", (23,))
    assert told(_NO_PROVIDER.format(9) + "step 1\nstep 2\n")[1] == ()  # NCCL takes sockets then


def test_an_adapter_without_which_training_began_all_the_same_ended_nothing() -> None:
    steps = "".join(f"step {step} loss 0.5\n" for step in range(9))
    assert told(_NOT_OPENED.format(9) + steps)[0] == "undecided"
    assert told(_NOT_OPENED.format(9) + steps + ranked(RAISED, 2)) == ("rank_raised", (2,))

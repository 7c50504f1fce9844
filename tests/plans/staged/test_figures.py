from tests.plans.staged.example import STAGED


def test_stages_are_planned_on_their_own_devices():
    STAGED.verify()
    assert [s.plan.cluster.num_devices for s in STAGED.stages] == [2, 2]
    assert STAGED.micro_batches == 4 and STAGED.batch == 16
    (link,) = STAGED.travel.links
    assert (link.source, link.target) == (0, 1)
    forward, backward = STAGED.travel.reshards[link]
    assert backward is not None
    assert forward.source.place == STAGED.stages[0].place == backward.target.place
    assert forward.spec.shape[0] == 4
    assert STAGED.iteration_s >= STAGED.timeline.makespan_s > 0
    assert all(
        m <= s.plan.memory_limit_bytes
        for m, s in zip(STAGED.memory_bytes, STAGED.stages, strict=True)
    )

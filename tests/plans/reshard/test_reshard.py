"""Cross-mesh resharding delivers the target layout, carries what it prices, keeps its bounds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cluster.link import Link
from autoddl.cluster.spec import Cluster, Device
from autoddl.plans.reshard.order import ORDERS, Job, Option, dfs, lower_bound, makespan
from autoddl.plans.reshard.plan import plan_reshard
from autoddl.plans.reshard.strategies import STRATEGIES, End, unit_tasks
from autoddl.sbp.layout import TensorSpec, local_slices
from autoddl.sbp.mesh import Mesh, SubMesh
from autoddl.sbp.placement import B, NdSbp, P, S
from tests.plans.reshard.simulated import carry_out

LINKS = Link(1e-6, 1e-11), Link(1e-5, 1e-9)


def cluster(nodes: int = 6, gpus: int = 4) -> Cluster:
    device = Device("cuda", 16 * 10**9, {"float32": 1e13}, 1e12)
    return Cluster("test", nodes, gpus, device, *LINKS)


def end(place: SubMesh, text: str) -> End:
    return End(place, NdSbp.parse(text))


SHARES = {2: [(), (3, 1), (1, 3)], 3: [(), (2, 1, 1), (1, 0, 3)]}  # of so many hosts


@st.composite
def reshardings(draw):
    """Random shapes (also fewer rows than devices), layouts, shares, whole or part hosts."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    labels = st.sampled_from([B, *(S(d) for d in range(len(shape)))])
    if draw(st.booleans()):
        gpus = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        nodes = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        places = SubMesh(0, nodes[0], 0, gpus[0]), SubMesh(nodes[0], nodes[1], 0, gpus[1])
    else:
        half = draw(st.sampled_from([1, 2]))
        places = SubMesh(0, 1, 0, half), SubMesh(0, 1, half, half)
    shares = [draw(st.sampled_from(SHARES.get(p.nodes, [()]))) for p in places]
    if any(shares):
        shape = tuple(4 * size for size in shape)
    meshes = [Mesh(*p.shape, own) for p, own in zip(places, shares, strict=True)]
    ends = [
        End(p, NdSbp(tuple(draw(labels) for _ in range(m.num_axes))), m.shares)
        for p, m in zip(places, meshes, strict=True)
    ]
    dtype = draw(st.sampled_from(["float32", "float16", "int64"]))
    return TensorSpec(shape, dtype), *ends


@given(reshardings(), st.sampled_from(STRATEGIES), st.sampled_from(list(ORDERS)))
@settings(max_examples=80)
def test_delivers_the_layout_and_carries_what_it_prices(drawn, strategy, order):
    spec, source, target = drawn
    plan = plan_reshard(spec, source, target, cluster(), strategy=strategy, order=order, budget=300)
    whole = np.arange(spec.numel).astype(spec.dtype).reshape(spec.shape)
    delivered = carry_out(plan, whole)
    for rank, shard in enumerate(delivered.shards):
        wanted = whole[local_slices(spec.shape, target.nd, target.mesh, rank)]
        np.testing.assert_array_equal(shard, wanted)
    into, out = plan.nic_bytes
    assert (+delivered.into, +delivered.out) == (+into, +out)
    for host, least in plan.bound_bytes.items():
        assert delivered.into[host] >= least
        if strategy in ("broadcast", "local_all_gather"):
            assert delivered.into[host] == least
    assert plan.scheduled_s >= plan.bound_s * (1 - 1e-9)
    _check_times(plan)


@given(reshardings(), st.integers(1, 4))
@settings(max_examples=30)
def test_moved_to_other_hosts_it_is_planned_as_there(drawn, hosts):
    spec, *ends = drawn
    there = [
        replace(e, place=replace(e.place, first_node=e.place.first_node + hosts)) for e in ends
    ]
    on = cluster(nodes=10)
    here, anew = (plan_reshard(spec, a, b, on, budget=300) for a, b in (ends, there))
    moved = here.moved(hosts)
    assert moved == anew
    assert moved.seconds == anew.seconds


def _check_times(plan):
    """Deliveries that share a host's link in one direction do not overlap."""
    for a, b in itertools.combinations(plan.scheduled, 2):
        (in_a, out_a), (in_b, out_b) = a.delivery.nic_bytes(), b.delivery.nic_bytes()
        if in_a.keys() & in_b.keys() or out_a.keys() & out_b.keys():
            assert a.end_s <= b.start_s + 1e-12 or b.end_s <= a.start_s + 1e-12


@given(reshardings())
@settings(max_examples=60)
def test_unit_tasks_are_every_wanted_element_once(drawn):
    spec, source, target = drawn
    tasks = unit_tasks(spec, source, target)
    for what, end_ in (("senders", source), ("receivers", target)):
        for rank, device in enumerate(end_.place.devices):
            count = np.zeros(spec.shape, dtype=int)
            for task in tasks:
                if device in getattr(task, what):
                    count[tuple(slice(*d) for d in task.box)] += 1
            shard = np.zeros(spec.shape, dtype=int)
            shard[local_slices(spec.shape, end_.nd, end_.mesh, rank)] = 1
            np.testing.assert_array_equal(count, shard)


@st.composite
def job_lists(draw):
    jobs = []
    for n in range(draw(st.integers(1, 4))):
        hosts = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True))
        receivers = draw(st.lists(st.integers(3, 5), min_size=1, max_size=2, unique=True))
        seconds = draw(st.integers(1, 4))
        options = tuple(
            Option(h, float(seconds), frozenset({("out", h), *(("in", r) for r in receivers)}))
            for h in hosts
        )
        jobs.append(Job(n, options, len(receivers), options))
    return jobs


@given(job_lists())
@settings(max_examples=60)
def test_search_is_as_good_as_brute_force(jobs):
    """On small problems the DFS is exact, and the ensemble is what is used."""
    best = min(
        makespan(jobs, list(zip(order, choices, strict=True)))
        for order in itertools.permutations(range(len(jobs)))
        for choices in itertools.product(*(range(len(jobs[n].options)) for n in order))
    )
    assert dfs(jobs).seconds == best
    assert ORDERS["ensemble"](jobs, 20_000, 0).seconds == best
    for algorithm in ORDERS.values():
        found = algorithm(jobs, 500, 1)
        assert sorted(n for n, _ in found.order) == list(range(len(jobs)))
        assert found.seconds == makespan(jobs, found.order) >= best >= lower_bound(jobs) - 1e-9


def test_two_sender_hosts_are_kept_busy():
    """Rows to columns, two hosts each: four tasks that run as two pairs, not as a queue."""
    spec = TensorSpec((64, 64, 32))
    ends = end(SubMesh(0, 2, 0, 4), "(S1, B, B)"), end(SubMesh(2, 2, 0, 4), "(S0, B, B)")
    ordered = plan_reshard(spec, *ends, cluster(), strategy="broadcast")
    naive = plan_reshard(spec, *ends, cluster(), strategy="broadcast", order="naive")
    assert naive.seconds > 1.4 * ordered.seconds
    assert ordered.seconds < 1.6 * ordered.bound_s


@pytest.mark.parametrize("hosts", [1, 2, 3, 5])
def test_broadcast_hardly_grows_with_the_hosts(hosts):
    """AlpaComm 3.1: A B t, A t, 2 t and t (1 + A / K) for one sender."""
    spec = TensorSpec((1 << 24,))
    source = end(SubMesh(0, 1, 0, 1), "()")
    target = End(SubMesh(1, hosts, 0, 4), NdSbp.broadcast(SubMesh(1, hosts, 0, 4).mesh.num_axes))
    t = spec.bytes * LINKS[1].beta_s_per_byte
    seconds = {
        s: plan_reshard(spec, source, target, cluster(), strategy=s).seconds / t for s in STRATEGIES
    }
    assert seconds["send_recv"] == pytest.approx(hosts * 4, rel=0.02)
    assert seconds["local_all_gather"] == pytest.approx(hosts, rel=0.02)
    assert seconds["global_all_gather"] == pytest.approx(2 if hosts > 1 else 1, rel=0.3)
    assert seconds["broadcast"] == pytest.approx(1, rel=0.08)
    assert plan_reshard(spec, source, target, cluster()).strategy in (
        "broadcast",
        "local_all_gather",
    )


def test_devices_of_a_host_take_turns_as_senders():
    spec = TensorSpec((64, 4))
    plan = plan_reshard(
        spec, end(SubMesh(0, 1, 0, 4), "(B, B)"), end(SubMesh(1, 2, 0, 2), "(S0, S0)"), cluster()
    )
    assert {s.delivery.sender for s in plan.scheduled} == {(0, g) for g in range(4)}


def test_many_tasks_are_bundled_and_still_deliver():
    spec = TensorSpec((24, 26))
    ends = end(SubMesh(0, 3, 0, 4), "(S0, S0, S0)"), end(SubMesh(3, 3, 0, 4), "(S1, S1, S1)")
    plan = plan_reshard(spec, *ends, cluster())
    assert len(plan.scheduled) == 144
    whole = np.arange(spec.numel, dtype=np.float32).reshape(spec.shape)
    for rank, shard in enumerate(carry_out(plan, whole).shards):
        slices = local_slices(spec.shape, ends[1].nd, ends[1].mesh, rank)
        np.testing.assert_array_equal(shard, whole[slices])
    _check_times(plan)


def test_same_inputs_same_plan():
    spec = TensorSpec((16, 16))
    ends = end(SubMesh(0, 2, 0, 4), "(S1, S1, B)"), end(SubMesh(2, 3, 0, 4), "(S0, B, S1)")
    assert plan_reshard(spec, *ends, cluster()) == plan_reshard(spec, *ends, cluster())


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ((SubMesh(0, 1, 0, 2), NdSbp.of(P)), None, {}, "is Partial; .* added up first"),
        (None, (SubMesh(1, 1, 0, 2), NdSbp.of(P)), {}, "target placement .* is Partial"),
        (None, (SubMesh(0, 1, 1, 2), NdSbp.of(B)), {}, "share device"),
        (None, (SubMesh(1, 1, 0, 2), NdSbp.of(S(4))), {}, "splits dim 4"),
        (None, (SubMesh(9, 1, 0, 2), NdSbp.of(B)), {}, "does not lie in test 6x4"),
        (None, None, {"strategy": "shout"}, "unknown strategy 'shout'; known: send_recv"),
        (None, None, {"order": "best"}, "unknown order 'best'; known: naive"),
    ],
)
def test_bad_input(
    source: tuple[SubMesh, NdSbp] | None, target: tuple[SubMesh, NdSbp] | None, options, message
):
    source = source or (SubMesh(0, 1, 0, 2), NdSbp.of(B))
    target = target or (SubMesh(1, 1, 0, 2), NdSbp.of(S(0)))
    with pytest.raises(ValueError, match=message):
        plan_reshard(TensorSpec((4, 4)), End(*source), End(*target), cluster(), **options)


def test_a_submesh_has_devices():
    with pytest.raises(ValueError, match="at least one device"):
        SubMesh(0, 0, 0, 1)
    assert SubMesh(1, 2, 2, 2).ranks(4) == (6, 7, 10, 11)
    assert str(SubMesh(1, 2, 0, 1)) == "host 1-2 devices 0"

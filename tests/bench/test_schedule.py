"""The reader of schedules: a short one in the compiler's format, whose loops and regions are known."""

import pytest

from .schedule import Cost, Loop, Schedule, fullest, read_schedule, read_use

# One bundle a line, but for comments. `Start region` names where branches go to. Two of the copies stand in comments.
SCHEDULE = """
= control target key start
LB: loop body
= control target key end

     0   :  { %s1 = smov 0 } /* entry bundle */
   0x1   :  { %2 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s5, /*vmem=*/%s33 /*
base_bounds: (8, 4, 1)
hlo: kernel.1 */ }
   0x2 LB: > { %s3 = sld [smem:[#allocation1]] } /* Start region 10 :: Start region 11 */
   0x3   : > { %4 = dma.done.wait [#allocation14], 2048 }
   0x4   : > { %5 = sbr.rel (%p3_p2) target = $region20 }
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8   :  {} /* End region 11 */
   0x9   : > { %6 = shalt.err (!%p7) /* BoundsCheck [deref of %s33] for %7 = dma.hbm_to_vmem */ } /* Start region 12 */
   0xa   : > { %v8 = vadd.f32 %v1, %v2 }
   0xb   : > { %v8 = vadd.f32 %v1, %v2 } /* End region 12 */
   0xc   : > { %9 = sbr.rel (%p3_p3) target = $region30 } /* Start/End empty region 20 */
   0xd   :  {}
   0xe   :  {}
   0xf   :  {}
  0x10   :  {}
  0x11   : > { %10 = vmatmul.mubr.bf16.mxu1 %v82 ;;  %11 = vmatpush3.bf16.xpose.msra.mxu1 %v1 } /* Start region 13 */
  0x12   : > { %12 = sbr.rel (%p3_p4) target = $region40 } /* Start region 30 */
  0x13   :  {}
  0x14   :  {}
  0x15   :  {}
  0x16   :  {}
  0x17   : > { %13 = vmatmul.mubr.bf16.mxu1 %v82 } /* Start region 14 */
  0x18   : > { %v8 = vadd.f32 %v1, %v2 }
  0x19 LB: >> { %14 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s5 } /* Start region 40 :: Start region 41 */
  0x1a   : >> { %15 = sbr.rel (!%p4) target = $region41 }
  0x1b   :  {}
  0x1c   :  {}
  0x1d   :  {}
  0x1e   : >> { %s16 = sadd.s32 1, %s2 } /* End region 41 */
  0x1f PF: > { %17 = sbr.rel (!%p5) target = $region10 }
  0x20   :  {}
  0x21   :  {}
  0x22   :  {}
  0x23   :  {}
  0x24 PF:  { %18 = dma.done.wait [#allocation15], 2048 } /* exit bundle */
"""
NUM_BUNDLES = 0x25
BLOCKS, PAGES = Loop(0x2, 0x24), Loop(0x19, 0x1F)


@pytest.fixture
def schedule() -> Schedule:
    return read_schedule(SCHEDULE, [(1, 2)] * NUM_BUNDLES)


def three(_: Schedule, loop: Loop) -> int:
    assert loop == PAGES
    return 3


def test_bundles_and_loops_are_found(schedule: Schedule) -> None:
    assert len(schedule.bundles) == NUM_BUNDLES
    assert schedule.loops == [BLOCKS, PAGES]
    assert schedule.block_loop == BLOCKS
    assert sum(bundle.copies for bundle in schedule.bundles) == 2  # of those in comments none
    assert sum(bundle.waits for bundle in schedule.bundles) == 2
    assert sum(bundle.matrix for bundle in schedule.bundles) == 3
    assert schedule.holds(PAGES, "copies")
    assert not schedule.holds(PAGES, "matrix")


def test_a_turn_counts_its_loops_by_their_trips_and_one_variant(schedule: Schedule) -> None:
    cost = schedule.cost(BLOCKS, three)
    whole, pages = BLOCKS.end - BLOCKS.begin, PAGES.end - PAGES.begin
    assert cost.bundles == whole + 2 * pages - 2  # the variant with fewer matrix instructions has two bundles
    assert cost.left_out == [2]
    assert cost.loops == [(PAGES, 3)]
    assert (cost.matrix, cost.copies) == (2, 3)
    assert cost.use == {0: cost.bundles, 1: 2 * cost.bundles}


def test_other_variants_can_be_chosen_and_regions_left_out(schedule: Schedule) -> None:
    most = schedule.cost(BLOCKS, three)
    short = schedule.cost(BLOCKS, three, lambda costs: min(costs, key=lambda cost: cost.matrix))
    assert (short.bundles, short.left_out) == (most.bundles + 1, [1])
    assert schedule.cost(BLOCKS, three, least=True).bundles == most.bundles - 3


def test_of_equally_full_variants_the_shortest_counts() -> None:
    costs = [Cost(bundles=bundles, matrix=matrix) for bundles, matrix in ((5, 1), (9, 2), (7, 2))]
    assert fullest(costs).bundles == 7


def test_a_table_of_units_is_read() -> None:
    text = "== CAPACITY:\nMXU, XLU, VLOAD:FILL\n    2     1     3\n== UTILIZATION:\n0 1 0\n2 0 3\n"
    assert read_use(text) == (["MXU", "XLU", "VLOAD:FILL"], [2, 1, 3], [(0, 1, 0), (2, 0, 3)])


def test_what_is_no_schedule_is_refused(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="no bundles"):
        read_schedule("nothing")
    with pytest.raises(ValueError, match="the use of 1"):
        read_schedule(SCHEDULE, [(1, 2)])
    flat = Schedule(schedule.bundles, {})
    with pytest.raises(ValueError, match="0 loops"):
        _ = flat.block_loop


NESTED = """
     0 LB: > { %1 = dma.done.wait [#allocation1], 2048 } /* Start region 1 */
   0x1   : > { %2 = sbr.rel (%p1) target = $region3 }
   0x2   :  {}
   0x3   :  {}
   0x4   :  {}
   0x5   :  {}
   0x6   : > { %3 = sbr.rel (%p2) target = $region2 }
   0x7   :  {}
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   : > { %4 = vmatmul.mubr.bf16.mxu1 %v1 ;; %5 = vmatmul.mubr.bf16.mxu1 %v2 } /* Start region 4 */
   0xc   : > { %6 = sbr.rel (%p3) target = $region3 } /* Start region 2 */
   0xd   :  {}
   0xe   :  {}
   0xf   :  {}
  0x10   :  {}
  0x11   : > { %7 = vmatmul.mubr.bf16.mxu1 %v1 } /* Start region 5 */
  0x12 PF: > { %8 = sbr.rel (!%p4) target = $region1 } /* Start region 3 */
  0x13   :  {}
  0x14   :  {}
  0x15   :  {}
  0x16   :  {}
  0x17 PF:  { %9 = vadd.f32 %v1, %v2 }
"""


def test_a_region_may_begin_with_a_branch_and_have_no_name() -> None:
    """Two variants stand within a region whose branch is their own's neighbour: one of them counts, not both."""
    schedule = read_schedule(NESTED)
    cost = schedule.cost(Loop(0, 0x17), lambda *_: 1)
    assert (cost.matrix, cost.left_out) == (2, [1])
    assert cost.bundles == 0x17 - 1


def test_a_region_without_a_name_is_the_programs_end() -> None:
    """A second core has nothing to do, on v5p: it goes behind all bundles."""
    schedule = read_schedule(NESTED.replace("target = $region2 }", "target = $region77 }"))
    assert schedule.regions[0x6].end == len(schedule.bundles) == 0x18

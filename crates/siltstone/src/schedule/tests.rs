//! luo19's theorems, and what each scheduler promises.

use super::turn::Turn;
use super::*;
use crate::io::Rng;

fn job(job: u64, left_bytes: u64) -> MergeProgress {
    MergeProgress {
        job,
        tree: 0,
        from_level: 1,
        to_level: 2,
        class: WorkClass::StallPreventing,
        input_bytes: left_bytes,
        left_bytes,
        fewer_runs: 1,
        score_permille: 1000,
        room_bytes: 0,
        stays_bytes: 0,
        adds_bytes: 0,
        urgent: false,
        held: false,
    }
}

fn shares(scheduler: Scheduler, jobs: &[MergeProgress], lanes: u32) -> Vec<Share> {
    let mut shares = vec![Share::FULL; jobs.len()];
    scheduler.next(jobs, lanes, &mut shares);
    shares
}

fn stepping(scheduler: Scheduler, jobs: &[MergeProgress], lanes: u32) -> Vec<u64> {
    let shares = shares(scheduler, jobs, lanes);
    jobs.iter().zip(&shares).filter(|(_, share)| share.weight > 0).map(|(job, _)| job.job).collect()
}

fn all() -> Vec<Scheduler> {
    Scheduler::NAMES.iter().map(|name| Scheduler::from_text(name).unwrap()).collect()
}

/// A job drawn at random.
fn drawn(rng: &mut Rng, number: u64) -> MergeProgress {
    let input_bytes = rng.between(1, 1 << 20);
    let from_level = u8::try_from(rng.below(4)).unwrap();
    MergeProgress {
        tree: u32::try_from(rng.below(2)).unwrap(),
        from_level,
        to_level: from_level + 1,
        class: WorkClass::ALL[usize::try_from(rng.between(1, 4)).unwrap()],
        input_bytes,
        left_bytes: rng.between(1, input_bytes),
        fewer_runs: u32::try_from(rng.below(5)).unwrap(),
        score_permille: rng.below(5000),
        room_bytes: if rng.one_in(2) && input_bytes > 1 { rng.below(1 << 20) } else { 0 },
        stays_bytes: rng.below(1 << 20),
        adds_bytes: input_bytes,
        urgent: rng.one_in(6),
        held: rng.one_in(6),
        ..job(number, 1)
    }
}

/// Runs a set of merges in virtual time, `step` bytes at a time as lanes do; returns the bytes that had been merged in all when each
/// ended, in the order of `jobs`.
fn run(scheduler: Scheduler, mut jobs: Vec<MergeProgress>, lanes: u32, step: u64) -> Vec<u64> {
    let mut ends = vec![0; jobs.len()];
    let mut index: Vec<usize> = (0..jobs.len()).collect();
    let mut turns = vec![Turn::default(); jobs.len()];
    let (mut clock, mut now) = (0, 0);
    while !jobs.is_empty() {
        let shares = shares(scheduler, &jobs, lanes);
        let (next, _) = turn::next(&mut turns, &shares, &mut clock, |_| true);
        let at = next.expect("some merge can step");
        let bytes = step.min(jobs[at].left_bytes);
        jobs[at].left_bytes -= bytes;
        now += bytes;
        turns[at].stepped(bytes, shares[at]);
        if jobs[at].left_bytes == 0 {
            ends[index[at]] = now;
            jobs.remove(at);
            turns.remove(at);
            index.remove(at);
        }
    }
    ends
}

/// luo19 theorem 1: any delay of writes makes no write faster. Writes queue for a store whose merges are fixed: between two moments it can
/// take so many. With the delays each write additionally waits until a moment of its own.
#[test]
fn t1_writes_as_fast_as_possible_are_never_later() {
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let (mut eager, mut delayed) = (Vec::new(), Vec::new());
        let (mut eager_at, mut delayed_at, mut arrives) = (0u64, 0u64, 0u64);
        // When room for the nth write comes into being: the same merges, hence the same moments, for both.
        let mut room = 0u64;
        for _ in 0..200 {
            arrives += rng.below(10);
            room += if rng.one_in(20) { rng.below(400) } else { rng.below(8) };
            let processing = rng.between(1, 4);
            eager_at = eager_at.max(arrives).max(room) + processing;
            delayed_at = delayed_at.max(arrives).max(room) + rng.below(6) + processing;
            eager.push(eager_at);
            delayed.push(delayed_at);
        }
        assert!(eager.iter().zip(&delayed).all(|(eager, delayed)| eager <= delayed));
    }
}

/// luo19 theorem 2, on every static set of up to 6 merges of these sizes against every order, and against fluid splits: at every moment as
/// many merges have ended under greedy as under any other schedule.
#[test]
fn t2_greedy_leaves_the_fewest_runs_at_every_moment() {
    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let shorter = orders(n - 1);
        let insert = |order: &Vec<usize>, at: usize| {
            let mut order = order.clone();
            order.insert(at, n - 1);
            order
        };
        shorter.iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
    }
    let greedy = Scheduler::Greedy(Greedy::default());
    let sorted = |mut ends: Vec<u64>| {
        ends.sort_unstable();
        ends
    };
    let no_later = |greedy: &[u64], other: &[u64]| greedy.iter().zip(other).all(|(greedy, other)| greedy <= other);
    let mut rng = Rng::new(2);
    for n in 1..=6 {
        let orders = orders(n);
        // All multisets would be many; every order of every set of sizes from these is enough to tell apart all cases of equal,
        // neighbouring and far sizes.
        for _ in 0..40 {
            let sizes: Vec<u64> = (0..n).map(|_| [1, 2, 3, 7, 20][usize::try_from(rng.below(5)).unwrap()]).collect();
            let jobs = || sizes.iter().zip(0..).map(|(size, number)| job(number, *size)).collect::<Vec<_>>();
            let best = sorted(run(greedy, jobs(), 1, 1));
            for order in &orders {
                let mut now = 0;
                let ends = order.iter().map(|at| {
                    now += sizes[*at];
                    now
                });
                assert!(no_later(&best, &sorted(ends.collect())), "{sizes:?} in order {order:?}");
            }
            for other in all() {
                assert!(no_later(&best, &sorted(run(other, jobs(), 1, 1))), "{sizes:?} by {other}");
            }
            // Fluid: at every step any merge.
            for _ in 0..20 {
                let (mut left, mut now, mut ends) = (sizes.clone(), 0, Vec::new());
                while left.iter().any(|left| *left > 0) {
                    let at = usize::try_from(rng.below(left.len() as u64)).unwrap();
                    if left[at] > 0 {
                        left[at] -= 1;
                        now += 1;
                        if left[at] == 0 {
                            ends.push(now);
                        }
                    }
                }
                assert!(no_later(&best, &ends), "{sizes:?} against a random split");
            }
        }
    }
}

/// luo19 theorem 3: no schedule has the fewest runs at every moment. Two merges, of 3 and of 4; the end of the larger one lets a policy make
/// two merges of 1 that no other could.
#[test]
fn t3_no_order_is_the_best_at_every_moment() {
    // Ended merges after each unit of time.
    let small_first = [0, 0, 0, 1, 1, 1, 1, 2, 3, 4];
    let large_first = [0, 0, 0, 0, 1, 2, 3, 3, 3, 4];
    let counts = |ends: &[u64]| (0..10).map(|t| ends.iter().filter(|end| **end <= t).count()).collect::<Vec<_>>();
    let run_in = |first: u64, second: u64, large_is_first: bool| {
        let mut now = first;
        let mut ends = vec![now];
        if large_is_first {
            ends.extend([now + 1, now + 2]);
            now += 2;
        }
        now += second;
        ends.push(now);
        if !large_is_first {
            ends.extend([now + 1, now + 2]);
        }
        counts(&ends)
    };
    assert_eq!(run_in(3, 4, false), small_first);
    assert_eq!(run_in(4, 3, true), large_first);
    assert!(small_first[3] > large_first[3] && small_first[6] < large_first[6], "each is better at one moment");
    // And greedy is the one of the two that begins with the smaller.
    assert_eq!(stepping(Scheduler::default(), &[job(1, 3), job(2, 4)], 1), [1]);
}

#[test]
fn one_at_a_time_all_together_or_the_smallest() {
    let jobs = [job(5, 10), job(3, 30), job(4, 20)];
    assert_eq!(stepping(Scheduler::Single, &jobs, 2), [3]);
    assert_eq!(stepping(Scheduler::Fair, &jobs, 2), [5, 3, 4]);
    let greedy = Scheduler::default();
    assert_eq!((stepping(greedy, &jobs, 1), stepping(greedy, &jobs, 2)), (vec![5], vec![5, 4]));
    assert_eq!(stepping(Scheduler::from_text("{ kind = \"greedy\", width = 1 }").unwrap(), &jobs, 2), [5]);
    assert_eq!(shares(greedy, &jobs, 2)[1].why, Why::Smaller(4));
    assert_eq!(shares(Scheduler::Single, &jobs, 1)[0].why, Why::Older(4));
    // A smaller one arrives and preempts; one that takes three runs away is worth three times its bytes; one that takes none is last.
    let arrived = [jobs[0], job(6, 9)];
    assert_eq!(stepping(greedy, &arrived, 1), [6]);
    let wide = MergeProgress { fewer_runs: 3, ..job(7, 26) };
    assert_eq!(stepping(greedy, &[wide, job(8, 9)], 1), [7]);
    assert_eq!(stepping(greedy, &[MergeProgress { fewer_runs: 0, ..job(1, 1) }, job(2, 1000)], 1), [2]);
}

#[test]
fn silk_serves_l0_first_and_deep_merges_with_what_is_left() {
    let shallow = MergeProgress { from_level: 0, to_level: 1, ..job(9, 1000) };
    let silk = Silk { device_bytes_per_s: 100 << 20, ..Silk::default() };
    let jobs = [job(1, 10), shallow];
    assert_eq!(stepping(Scheduler::Silk(silk), &jobs, 1), [9]);
    assert_eq!(shares(Scheduler::Silk(silk), &jobs, 1)[0].why, Why::FirstClass(9));
    assert_eq!(stepping(Scheduler::Silk(silk), &jobs, 2), [1, 9]);
    assert_eq!(silk.rate(0, 40 << 20), 60 << 20);
    assert_eq!(silk.rate(60 << 20, 43 << 20), 60 << 20, "within the hysteresis");
    assert_eq!(silk.rate(60 << 20, 60 << 20), 40 << 20);
    assert_eq!(silk.rate(60 << 20, 200 << 20), silk.least_bytes_per_s, "never nothing");
    assert_eq!(Silk::default().rate(5, 5), 0, "an unknown device limits nobody");
}

#[test]
fn gears_keep_a_merge_behind_the_one_that_makes_room() {
    let gear = Scheduler::from_text("spring-gear").unwrap();
    let below =
        |left| MergeProgress { from_level: 2, to_level: 3, input_bytes: 1000, room_bytes: 1000, ..job(1, left) };
    let above = |stays| MergeProgress { stays_bytes: stays, adds_bytes: 10, input_bytes: 1000, ..job(2, 1000) };
    let weight = |fill, left| shares(gear, &[below(left), above(fill)], 2)[1];
    assert_eq!(weight(500, 500), Share::FULL);
    assert_eq!(weight(550, 500).weight, 500, "half of the slack is used up");
    assert_eq!(weight(600, 500), Share::none(Why::Room(1)));
    // In another tree nothing is below it; nor without one.
    assert_eq!(shares(gear, &[MergeProgress { tree: 7, ..below(1000) }, above(2000)], 2)[1], Share::FULL);
}

#[test]
fn the_most_due_goes_first_by_score() {
    let due = |number, score_permille| MergeProgress { score_permille, ..job(number, 1) };
    let score = Scheduler::from_text("score").unwrap();
    assert_eq!(stepping(score, &[due(1, 1500), due(2, 4000), due(3, 4000)], 1), [2]);
}

/// Whatever the scheduler: some merge steps unless all are held, what is held waits, what is urgent steps before what is not, a
/// reason names a merge that steps or leads to one, and the answer depends on nothing but the question.
#[test]
fn every_scheduler_keeps_the_common_rules() {
    let mut rng = Rng::new(3);
    for _ in 0..2000 {
        let n = rng.between(0, 9);
        let jobs: Vec<_> = (0..n).map(|number| drawn(&mut rng, number)).collect();
        let lanes = u32::try_from(rng.between(1, 4)).unwrap();
        for scheduler in all() {
            let shares = shares(scheduler, &jobs, lanes);
            let stepping = stepping(scheduler, &jobs, lanes);
            let free = jobs.iter().filter(|job| !job.held);
            assert_eq!(free.clone().count() == 0, stepping.is_empty(), "{scheduler}: {jobs:?}");
            for (job, share) in jobs.iter().zip(&shares) {
                assert_eq!(job.held, share.why == Why::Held);
                assert_eq!(share.weight > 0, share.why == Why::Steps);
                assert!(share.weight <= FULL);
                if let Why::Older(other)
                | Why::Smaller(other)
                | Why::FirstClass(other)
                | Why::MoreDue(other)
                | Why::Room(other)
                | Why::Urgent(other) = share.why
                {
                    assert!(other != job.job && jobs.iter().any(|job| job.job == other));
                }
            }
            let urgent_waits = free.clone().any(|job| job.urgent && !stepping.contains(&job.job));
            let other_steps = free.clone().any(|job| !job.urgent && stepping.contains(&job.job));
            assert!(!(urgent_waits && other_steps), "{scheduler} {lanes}: {jobs:?}");
        }
    }
}

/// No merge of a set starves: all end, whatever the scheduler. And where it is promised, not even if small ones keep coming.
#[test]
fn merges_end() {
    let mut rng = Rng::new(4);
    for _ in 0..100 {
        let jobs: Vec<_> = (0..6).map(|number| MergeProgress { held: false, ..drawn(&mut rng, number) }).collect();
        for scheduler in all() {
            assert!(run(scheduler, jobs.clone(), 2, 4096).iter().all(|end| *end > 0));
        }
    }
    // A large merge, and always a small new one beside it.
    let ends = |scheduler: Scheduler| {
        let mut jobs = vec![job(0, 1000), job(1, 50)];
        let (mut turns, mut clock) = (vec![Turn::default(); 2], 0);
        for now in 0..4000u64 {
            let shares = shares(scheduler, &jobs, 1);
            let at = turn::next(&mut turns, &shares, &mut clock, |_| true).0.unwrap();
            jobs[at].left_bytes -= 1;
            turns[at].stepped(1, shares[at]);
            if jobs[0].left_bytes == 0 {
                return true;
            }
            if jobs[1].left_bytes == 0 {
                jobs[1] = job(now + 2, 50);
                turns[1] = Turn::default();
            }
        }
        false
    };
    assert!(ends(Scheduler::Single) && ends(Scheduler::Fair) && ends(Scheduler::from_text("spring-gear").unwrap()));
    assert!(!ends(Scheduler::default()), "greedy promises nothing while more comes than can be merged");
}

#[test]
fn turns_follow_the_weights_whatever_the_steps() {
    let shares = [300, 100, 600].map(|weight| Share { weight, why: Why::Steps });
    let (mut turns, mut clock, mut bytes) = (vec![Turn::default(); 3], 0, [0u64; 3]);
    let mut rng = Rng::new(5);
    while bytes.iter().sum::<u64>() < 10_000_000 {
        let at = turn::next(&mut turns, &shares, &mut clock, |_| true).0.unwrap();
        let step = rng.between(1, 20_000);
        turns[at].stepped(step, shares[at]);
        bytes[at] += step;
    }
    for (bytes, share) in bytes.iter().zip(&shares) {
        let wanted = 10_000 * u64::from(share.weight);
        assert!(bytes.abs_diff(wanted) < 300_000, "{bytes} of {wanted}");
    }
    // Who was away gets no credit, and of a busy one the next is told.
    let equal = [Share::FULL; 2];
    let mut two = [Turn::default(); 2];
    assert_eq!(turn::next(&mut two, &equal, &mut clock, |at| at == 1), (Some(1), false));
    two[1].stepped(1, Share::FULL);
    assert_eq!(turn::next(&mut two, &equal, &mut clock, |_| true), (Some(0), true));
    assert_eq!(turn::next(&mut two, &[Share::none(Why::Held); 2], &mut clock, |_| true), (None, false));
}

#[test]
fn schedulers_print_and_parse_back_and_wrong_ones_are_refused() {
    let silk = "{ kind = \"silk\", device_bytes_per_s = 1000, sample_ms = 5 }";
    for text in Scheduler::NAMES.into_iter().chain([silk, "{ kind = \"score\", exact_l0 = true }"]) {
        let scheduler = Scheduler::from_text(text).unwrap();
        assert_eq!(Scheduler::from_text(&scheduler.to_string()).unwrap(), scheduler);
    }
    assert_eq!(Scheduler::Fair.to_string(), "fair");
    let refused = |text: &str| Scheduler::from_text(text).unwrap_err().to_string();
    let unknown = refused("gready");
    assert!(unknown.contains("gready") && unknown.contains("spring-gear"), "{unknown}");
    assert!(refused("{ kind = \"fair\", width = 2 }").contains("\"width\" is no parameter of fair; it has: none"));
    assert!(refused("{ kind = \"greedy\", witdh = 2 }").contains("witdh"));
    assert!(refused("{ kind = \"greedy\", width = 65 }").contains("width = 65: from 0"));
    assert!(refused("{ kind = \"silk\", sample_ms = 0 }").contains("sample_ms = 0: from 1"));
    assert!(refused("{ kind = \"spring-gear\", slack_permille = 0 }").contains("slack_permille = 0"));
}

//! A load whose stacks never end, in a memory that they fill every few seconds.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use object::{Object as _, ObjectSymbol as _};
use unikprof_profile::profile::Profile;
use unikprof_profile::recording::{Completeness, Recording};
use unikprof_profile::symbols::Image;

use crate::harness::{Client, Guest, SOON};

/// As in the guest's `deep.rs`.
const HOT_WAYS: u64 = 50;
const DEPTH: usize = 24;

/// The way with this number, as the guest calculates it: SplitMix64.
fn way(number: u64) -> u64 {
    let mut way = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    way = (way ^ (way >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    way = (way ^ (way >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    way ^ (way >> 31)
}

/// The calls of a stack, outermost first, one bit each from the lowest on: 1 for `right`.
type Calls = (usize, u64);

/// Reads calls of `left` and `right` off stacks.
struct Reader {
    image: Image,
    /// Address, end, whether it is `right`.
    functions: Vec<(u64, u64, bool)>,
}

impl Reader {
    fn new() -> Reader {
        let bytes = fs::read(Guest::program()).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let functions = file.symbols().filter_map(|symbol| {
            let name = symbol.name().ok()?;
            let of = |function: &str| name.contains("4deep") && name.contains(function);
            let is_right = of("5right");
            (is_right || of("4left"))
                .then(|| (symbol.address(), symbol.address() + symbol.size(), is_right))
        });
        let functions: Vec<_> = functions.collect();
        assert_eq!(functions.len(), 2, "left and right");
        Reader { image: Image::parse(Guest::program(), bytes).unwrap(), functions }
    }

    /// The calls of each stack, with its samples.
    fn read(&self, profile: &Profile) -> Vec<(Calls, u64)> {
        let call = |address: u64| {
            let (_, mapping) = profile.mapping_of(address)?;
            let at = self.image.link_address(mapping, address)?;
            let function = self.functions.iter().find(|(from, to, _)| (*from..*to).contains(&at));
            function.map(|(.., is_right)| u64::from(*is_right))
        };
        let calls = |sample: &unikprof_profile::profile::Sample| {
            let frames = profile.stack(sample.node);
            let addresses = frames.filter_map(|id| profile.frame(id).lookup_address());
            let calls = addresses.filter_map(call);
            // From the leaf outward: what comes later is shifted in below.
            let calls = calls.fold((0, 0), |(depth, bits), bit| (depth + 1, bits << 1 | bit));
            (calls, sample.count)
        };
        profile.samples().iter().map(calls).collect()
    }
}

/// More ways than the load takes, however much faster it is than it measured itself.
const WAYS: u64 = 1_000_000;

/// The stacks that are none of the load's.
fn strangers(stacks: &[(Calls, u64)]) -> HashSet<Calls> {
    let mut left: HashSet<Calls> = stacks.iter().map(|(calls, _)| *calls).collect();
    // A stack that came before the load began, or between two ways.
    left.remove(&(0, 0));
    for number in 0..WAYS {
        // The first call is always `left`.
        let bits = way(number) << 1;
        for depth in 1..=DEPTH + 1 {
            left.remove(&(depth, bits & ((1 << depth) - 1)));
        }
        if left.is_empty() {
            break;
        }
    }
    left
}

/// Some 5,000 fill the memory if nobody takes them.
const SAMPLES: u64 = 8_000;

/// Records at the rate of the preset `profile`, for ten minutes or so many samples.
fn record(client: &Client, is_long: bool) -> Recording {
    let words = ["record", "600s", "-F", "997", "-o", "run.unikprof"];
    if is_long {
        let running = client.begin(&words);
        let most = Duration::from_secs(600) + 2 * SOON;
        running.finish_within(most).expect_success();
    } else {
        client.record_until(SAMPLES, &["-F", "997"]);
    }
    client.recording("run.unikprof")
}

/// Two recordings at once, of which nobody fetches the first; `UNIKPROF_LONG` runs it for ten
/// minutes.
#[test]
#[ignore = "full: records a guest"]
fn stacks_without_end_overflow_nothing() {
    let is_long = std::env::var_os("UNIKPROF_LONG").is_some();
    let guest = Guest::start_recording("churn", "boot");
    let client = guest.client();
    // Again if the machine kept the client from its processor for longer than the memory lasts.
    let mut recordings = (0..3).map(|_| record(&client, is_long));
    let in_time = recordings.find(|one| {
        let counters = one.profile.counters();
        counters.aged + counters.overflow == 0
    });
    let recording = in_time.expect("a recording whose client takes all counts in time");
    client.must(&["stop", "--name", "boot", "-o", "boot.unikprof"]);
    let boot = client.recording("boot.unikprof");
    let reader = Reader::new();
    let check = |name: &str, recording: &Recording| {
        let counters = recording.profile.counters();
        println!("{name}: {counters:?}");
        assert_eq!(recording.completeness, Completeness::Complete);
        assert_eq!(recording.contradictions, [""; 0]);
        assert_eq!((counters.overflow, counters.broken), (0, 0), "{counters:?}");
        let samples = recording.profile.sample_count();
        assert_eq!(counters.recorded + counters.aged, samples);
        let stacks = reader.read(&recording.profile);
        assert_eq!(strangers(&stacks), HashSet::new());
        (counters, stacks)
    };
    let (_, stacks) = check("record", &recording);
    let samples_of = |is_one: &dyn Fn(Calls) -> bool| -> u64 {
        let of = stacks.iter().filter(|(calls, _)| is_one(*calls));
        of.map(|(_, count)| count).sum()
    };
    let is_whole = |(depth, _): Calls| depth == DEPTH + 1;
    let mask = (1 << (DEPTH + 1)) - 1;
    let hot: HashSet<u64> = (0..HOT_WAYS).map(|number| way(number) << 1 & mask).collect();
    let of_hot = samples_of(&|calls| is_whole(calls) && hot.contains(&calls.1));
    let share = of_hot as f64 / samples_of(&is_whole) as f64;
    assert!((0.4..0.6).contains(&share), "each second way is a hot one, not {share}");
    let ways: HashSet<u64> =
        stacks.iter().filter(|(calls, _)| is_whole(*calls)).map(|((_, bits), _)| *bits).collect();
    println!("{} ways", ways.len());
    assert!(ways.len() as u64 > 4 * HOT_WAYS, "{} ways", ways.len());
    let (counters, _) = check("boot", &boot);
    assert!(!is_long || counters.aged > 0, "nobody fetched it: {counters:?}");
}

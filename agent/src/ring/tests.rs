extern crate std;

use std::boxed::Box;
use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::vec::Vec;

use unikprof_proto::ring::{Record, Wait, decode, kind, outcome};

use super::record::Step;
use super::*;

/// Uses a stack's place as its number.
fn same(_: u64, place: u32) -> u64 {
    place.into()
}

/// A ring in memory that is never freed.
fn ring_of(records: usize) -> Ring<'static> {
    let cells = Box::leak(Box::default());
    let records = (0..records).map(|_| RecordCells::default()).collect();
    Ring::new(cells, Vec::leak(records)).unwrap()
}

fn block(bytes: usize) -> Vec<MaybeUninit<u8>> {
    std::vec![MaybeUninit::new(0xff); bytes]
}

fn mark(number: u64) -> Entry {
    Entry::named(kind::MARK, 7, number)
}

/// All records that a reader returns, with their positions, except the ring's internal ones.
fn read_all(ring: &Ring<'_>, mut reader: Reader) -> Vec<(u64, Record)> {
    let mut seen = Vec::new();
    let mut buffer = [0; 300];
    while let Some(run) = reader.run(ring, same, &mut buffer) {
        let mut position = run.first;
        decode(run.base_ns, run.count, &buffer[..run.bytes], |record| {
            if record.kind != kind::NOTHING {
                seen.push((position, record));
            }
            position += 1;
        })
        .unwrap();
    }
    seen
}

fn read(ring: &Ring<'_>, position: u64, since_ns: u64) -> Vec<(u64, Record)> {
    read_all(ring, Reader::new(ring, position, since_ns))
}

fn times(records: &[(u64, Record)]) -> Vec<u64> {
    records.iter().map(|(_, record)| record.at_ns).collect()
}

#[test]
fn every_kind_comes_back_with_its_numbers() {
    let ring = ring_of(256);
    let stack = (1 << 24) - 1;
    let expected = [
        (kind::SAMPLE, stack, 0x1ff),
        (kind::SAMPLE, 1, 0),
        (kind::NO_SAMPLE, outcome::IDLE, 0xff),
        (kind::BEGAN, u64::MAX, 3),
        (kind::ENDED, 1, 0),
        (kind::RESUMED, 0, 0),
        (kind::STOLEN, u64::MAX, 0),
        (kind::BAD_KEY, 0, 0),
        (kind::CLOCK, 1_800_000_000_000_000_000, 0),
        (kind::MARK, 255, u64::MAX),
        (kind::SPAN_BEGIN, 0, 1),
        (kind::SPAN_END, 1, 0),
        (kind::COUNTER, 9, -5_i64 as u64),
    ];
    for (kind, first, second) in expected {
        assert!(ring.push(5, Entry::new(kind, first, second)).is_some());
    }
    ring.push_pair(6, kind::RAN, u64::MAX, 1);
    ring.push_pair(6, kind::WAITED, 0, u64::MAX);
    let pairs = [(kind::RAN, u64::MAX, 1), (kind::WAITED, 0, u64::MAX)];
    let wait = Wait { ring_bits: 8, is_first: true, length_ns: 500, ..Wait::default() };
    let other = Wait { is_first: false, is_last: true, is_overflow: true, ..wait };
    let waits = [(stack, u64::MAX, wait), (0, 7, other)];
    for (place, amount, wait) in waits {
        ring.push_wait(6, 0, place as u32, amount, wait);
    }
    let found: Vec<_> = read(&ring, 0, 0)
        .iter()
        .map(|(_, record)| (record.kind, record.first, record.second, record.third))
        .collect();
    let two = expected.iter().chain(&pairs);
    let two = two.map(|&(kind, first, second)| (kind, first, second, 0));
    let waits = waits.map(|(stack, amount, wait)| (kind::WAIT, stack, amount, wait.to_number()));
    assert_eq!(found, two.chain(waits).collect::<Vec<_>>());
}

/// Guards against missing, incomplete or unordered newest records, however many times the ring was
/// filled.
#[test]
fn a_ring_filled_many_times_holds_the_newest() {
    for length in [64, 100, 333, 1000] {
        let ring = ring_of(length);
        let capacity = ring.capacity() as usize;
        for number in 0..100_000_u64 {
            ring.push(number * 1000, mark(number));
            if number % 9973 == 0 {
                let seen = read(&ring, 0, 0);
                let kept = seen.len();
                assert!(kept + 5 > capacity.min(number as usize), "{kept} of {capacity}");
                for (index, (position, record)) in seen.iter().enumerate() {
                    let expected = number + 1 - (kept - index) as u64;
                    assert_eq!((record.first, record.second), (7, expected));
                    assert_eq!(record.at_ns, expected * 1000);
                    assert!((ring.oldest()..ring.next()).contains(position));
                }
                let positions = seen.windows(2).all(|pair| pair[0].0 < pair[1].0);
                assert!(positions);
            }
        }
    }
}

/// A record contains 43 bits of its time: times hours apart must be restored, wherever reading
/// begins.
#[test]
fn times_are_whole_however_far_apart_they_lie() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let ring = ring_of(1000);
    let mut written = Vec::new();
    let mut now_ns = 50 * HOUR_NS;
    for step in 0..5000_u64 {
        now_ns += match step % 97 {
            0 => 31 * HOUR_NS,
            1 => 2 * HOUR_NS,
            2..5 => HOUR_NS,
            _ => 1_000_000,
        };
        written.push((ring.push(now_ns, mark(step)).unwrap(), now_ns));
    }
    let oldest = ring.oldest();
    written.retain(|(position, _)| *position >= oldest);
    for from in (0..written.len()).step_by(13) {
        let seen = read(&ring, written[from].0, 0);
        let seen: Vec<_> = seen.iter().map(|(at, record)| (*at, record.at_ns)).collect();
        assert_eq!(seen, written[from..]);
    }
}

/// A short ring may have no `TIME` record: times must still be right, however late the ring is read
/// and wherever the reader begins.
#[test]
fn a_short_ring_read_late_has_its_own_times() {
    for half in [0, 1, 2, 7] {
        let ring = ring_of(64);
        let start_ns = (half << HALF_BITS) + 5;
        for number in 0..200 {
            ring.push(start_ns + number, mark(number));
        }
        for position in [0, 150, 198] {
            let seen = read(&ring, position, 0);
            assert!(seen.iter().all(|one| one.1.at_ns == start_ns + one.1.second));
            assert_eq!(seen.last().map(|one| one.1.second), Some(199));
        }
    }
}

/// Records that take two places must not displace the `TIME` records that readers look for.
#[test]
fn pairs_leave_the_whole_times_in_place() {
    let ring = ring_of(4096);
    for number in 0..5000 {
        ring.push_pair(number, kind::RAN, number, 7 * number);
        if number % 3 == 0 {
            ring.push(number, mark(number));
        }
    }
    for position in (ring.oldest()..ring.next() - ANCHOR_EVERY).step_by(7) {
        assert!(ring.keeps_time(position..position + ANCHOR_EVERY), "{position}");
    }
    let seen = read(&ring, 0, 0);
    let pairs = seen.iter().filter(|one| one.1.kind == kind::RAN);
    assert!(pairs.clone().count() > 1500);
    assert!(pairs.clone().all(|one| one.1.second == 7 * one.1.first));
}

/// Stolen time before the first call is not counted; later stolen time is, even if there was none
/// before.
#[test]
fn stolen_time_is_recorded_from_the_first_look_on() {
    for before in [0, 1, 10_000] {
        let ring = ring_of(64);
        assert_eq!(ring.stolen_since(before), 0);
        assert_eq!(ring.stolen_since(before + 7), 7);
        assert_eq!(ring.stolen_since(before + 7), 0);
        assert_eq!(ring.stolen_since(0), 0, "a new life begins at 0");
        assert_eq!(ring.stolen_since(5), 5);
    }
}

/// A guest's monotonic clock should not step; if it does, times are returned as they were written.
#[test]
fn a_clock_that_steps_back_and_forth_is_kept_as_it_was() {
    let ring = ring_of(400);
    let boundary = 1 << HALF_BITS;
    let mut written = Vec::new();
    for step in 0..300_u64 {
        let now_ns = match step % 6 {
            0 => 3 * boundary - 1,
            1 => 3 * boundary + 1,
            2 => 10 * boundary,
            3 => 3 * boundary - step,
            4 => u64::MAX,
            _ => 0,
        };
        ring.push(now_ns, mark(step));
        written.push(now_ns);
    }
    let seen = times(&read(&ring, 0, 0));
    assert_eq!(seen, written[written.len() - seen.len()..]);
    assert!(seen.len() > 150);
}

#[test]
fn a_moment_is_found_and_what_lies_before_it_is_passed_over() {
    let ring = ring_of(10_000);
    for number in 0..25_000_u64 {
        ring.push(number * 1000, mark(number));
    }
    let now_ns = 25_000_000;
    for since_ns in [15_100_000, 16_000_500, 20_000_000, 24_999_000] {
        let seen = times(&read(&ring, 0, since_ns));
        assert_eq!(seen.first(), Some(&since_ns.next_multiple_of(1000)));
        assert_eq!(seen.last(), Some(&24_999_000));
    }
    assert!(read(&ring, 0, now_ns).is_empty());
    assert!(read(&ring, u64::MAX, 0).is_empty());
    let all = read(&ring, 0, 1);
    assert_eq!(all, read(&ring, 0, 0));
    assert!(all.len() > 9_900);
}

/// Guards against false gaps, which the client takes for records that were overwritten while it
/// read.
#[test]
fn runs_leave_no_gap_where_none_is_overwritten() {
    let ring = ring_of(10_000);
    for number in 0..6_000_u64 {
        ring.push(number, mark(number));
        ring.push_pair(number, kind::RAN, number, number);
    }
    for room in 60..90 {
        let mut reader = Reader::new(&ring, 0, 0);
        let mut buffer = std::vec![0; room];
        let mut next = None;
        while let Some(run) = reader.run(&ring, same, &mut buffer) {
            assert_eq!(run.first, next.unwrap_or(run.first), "frames of {room} bytes");
            next = Some(run.first + u64::from(run.count));
        }
        assert_eq!(next, Some(ring.next()));
    }
}

/// The same for a reader that begins where another one ended, at an internal record.
#[test]
fn readers_leave_no_gap_between_them() {
    let ring = ring_of(10_000);
    for number in 1..600_u64 {
        ring.push(number, mark(number));
        ring.push_pair(number, kind::RAN, number, number);
    }
    let mut buffer = [0; 300];
    for position in 1..ring.next() {
        let run = Reader::new(&ring, position, 1).run(&ring, same, &mut buffer);
        assert_eq!(run.map(|run| run.first), Some(position));
    }
}

/// Seconds without records in the ring must not look like seconds without events.
#[test]
fn a_reader_says_from_when_on_it_has_returned_all() {
    let ring = ring_of(1_000);
    let mut buffer = [0; 300];
    let mut whole_since = |position, since_ns| {
        let mut reader = Reader::new(&ring, position, since_ns);
        while reader.run(&ring, same, &mut buffer).is_some() {}
        reader.whole_since_ns()
    };
    let write = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            ring.push(number * 1_000, mark(number));
        }
    };
    write(5..500);
    assert_eq!(whole_since(0, 0), Some(0), "nothing was dropped");
    assert_eq!(whole_since(0, 7_000), Some(7_000));
    assert_eq!(whole_since(0, 9_000_000), Some(9_000_000));
    let first = whole_since(300, 0).unwrap();
    assert!((290_000..310_000).contains(&first), "{first}: the first that was asked for");
    write(500..5_000);
    let oldest = read(&ring, 0, 0)[0].1.at_ns;
    assert_eq!(whole_since(0, 0), Some(oldest));
    assert_eq!(whole_since(0, 7_000), Some(oldest));
    assert_eq!(whole_since(0, 4_500_500), Some(4_500_500), "of this nothing was dropped");
    assert_eq!(whole_since(u64::MAX, 0), None);

    let mut overtaken = Reader::new(&ring, 0, 0);
    write(5_000..5_900);
    let run = overtaken.run(&ring, same, &mut [0; 300]).unwrap();
    assert_eq!(overtaken.whole_since_ns(), Some(run.base_ns));
    assert!(run.base_ns > oldest);
}

/// An upcall interrupts the writing of a record at each point, and writes few records or fills the
/// ring several times: no record may mix two writers' data, and each is returned, evicted or
/// counted as lost.
#[test]
fn a_writer_that_is_interrupted_mixes_nothing_up() {
    for step in [Step::Reserved, Step::Looked, Step::Claimed, Step::Numbered] {
        for nested in [0, 1, 5, 62, 63, 64, 65, 128, 1000] {
            let ring = ring_of(64);
            for number in 0..70 {
                ring.push(number, mark(number));
            }
            let came = Cell::new(false);
            ring.push_interrupted(70, mark(70), |at| {
                if at == step && !came.replace(true) {
                    for number in 71..71 + nested {
                        ring.push(number, mark(number));
                    }
                }
            });
            let seen = read_all(&ring, Reader::new(&ring, 0, 0).no_wait());
            assert!(seen.iter().all(|(_, record)| record.at_ns == record.second));
            let lost = ring.lost();
            let expected = match (nested >= 64, step) {
                (false, _) => 0,
                // The interrupted writer finds its place taken.
                (true, Step::Reserved | Step::Looked) => 1,
                // The interrupted writer has the place: each lap loses one record.
                (true, _) => nested / 64,
            };
            assert!(lost.abs_diff(expected) <= 1, "{step:?}: {lost} of {nested}");
            assert!(seen.len() as u64 + 5 + lost >= 64);
            assert!(came.get());
        }
    }
}

/// A reader waits for a record that is being written; a crash dump skips it.
#[test]
fn a_record_that_is_being_written_is_waited_for() {
    let ring = ring_of(64);
    ring.push(1, mark(1));
    let stopped_at = Cell::new(0);
    ring.push_interrupted(2, mark(2), |at| {
        if at == Step::Claimed {
            ring.push(3, mark(3));
            let mut reader = Reader::new(&ring, 0, 0);
            let mut buffer = [0; 300];
            assert!(reader.run(&ring, same, &mut buffer).is_some());
            assert!(reader.run(&ring, same, &mut buffer).is_none());
            stopped_at.set(reader.position());
            let no_wait = Reader::new(&ring, 0, 0).no_wait();
            assert_eq!(times(&read_all(&ring, no_wait)), [1, 3]);
        }
    });
    assert_eq!(times(&read(&ring, stopped_at.get(), 0)), [2, 3]);
}

/// Writers overtake a slow reader: it continues with the oldest records left.
#[test]
fn a_reader_that_is_overtaken_goes_on_with_the_oldest() {
    let ring = ring_of(128);
    let write = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            ring.push(number, mark(number));
        }
    };
    write(0..100);
    let mut reader = Reader::new(&ring, 0, 0);
    let mut buffer = [0; 100];
    assert!(reader.run(&ring, same, &mut buffer).is_some());
    write(100..200);
    let seen = read_all(&ring, reader);
    assert!(seen.iter().all(|(_, record)| record.at_ns == record.second));
    assert_eq!(seen.last().map(|(_, record)| record.second), Some(99));
    assert!(seen.first().unwrap().0 >= ring.oldest());
    write(200..2000);
    assert!(read_all(&ring, reader).is_empty());
}

/// Readers on other vCPUs, with a concurrent writer that fills a small ring as fast as it can.
#[test]
fn records_read_beside_their_writer_are_whole() {
    let ring = ring_of(64);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut seen = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                for (_, record) in read(&ring, 0, 0) {
                    assert_eq!(record.at_ns, record.second);
                    seen += 1;
                }
            }
            seen
        });
        for number in 0..2_000_000 {
            ring.push(number, mark(number));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reading.join().is_ok());
    });
    assert_eq!(ring.lost(), 0);
}

#[test]
fn rings_take_all_of_their_block_wherever_it_lies() {
    let bytes = ring_bytes(3, 1000);
    for offset in 0..65 {
        let mut block = block(bytes + 65);
        let rings = Rings::in_block(&mut block[offset..bytes + offset], 3).unwrap();
        for vcpu in 0..3 {
            let ring = rings.ring(vcpu).unwrap();
            assert!((1000..1020).contains(&ring.capacity()));
            assert_eq!(ring.next(), 0);
        }
        assert!(rings.ring(3).is_none());
    }
    assert!(Rings::in_block(&mut block(ring_bytes(3, 0)), 3).is_some());
    assert!(Rings::in_block(&mut block(ring_bytes(3, 0) / 2), 3).is_none());
    assert!(Rings::in_block(&mut block(1 << 16), 0).is_none());
    assert!(Rings::in_block(&mut block(1 << 16), usize::MAX).is_none());
    let mut mebibyte = block(1 << 20);
    let ring = Rings::in_block(&mut mebibyte, 1).unwrap().ring(0).unwrap();
    assert!(ring.capacity() > 64_000);
}

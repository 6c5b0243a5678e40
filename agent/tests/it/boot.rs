//! Recordings that begin when the guest starts: clients find them by name, and they have the same
//! limits as a client's.

use crate::client::{Frame, read};
use crate::fake_guest::{Client, served, tick};
use unikprof_agent::{BootMode, BootRecording};
use unikprof_proto::code::{mode, state};
use unikprof_proto::message::{Check, RecordingStatus, Status};

fn recordings(client: &mut Client) -> Vec<Frame> {
    let mut frames = client.ask(&Check {});
    let status: Status = read(&frames.remove(0));
    assert_eq!(status.recordings as usize, frames.len());
    frames
}

#[test]
fn the_first_client_finds_it_with_what_was_counted_before_it_came() {
    let (agent, service) = served();
    let asked = BootRecording {
        mode: BootMode::Wall,
        period_ns: 1_000_000,
        ..BootRecording::always_on("flight")
    };
    let id = service.borrow_mut().start_at_boot(&asked).unwrap();
    for _ in 0..20 {
        assert!(tick(agent, &[1, 100, 200]), "it samples before anybody asks");
    }
    let mut client = Client::connect(&service);
    let frames = recordings(&mut client);
    let status: RecordingStatus<'_> = read(&frames[0]);
    assert_eq!((status.recording, status.name), (id, "flight"));
    assert_eq!((status.state, status.mode), (state::RECORDING, mode::WALL));
    assert_eq!(status.max_age_ns, asked.max_age_ns);
    assert_eq!(status.max_bytes, asked.max_bytes);
    assert_eq!(status.counters.recorded, 20);
}

/// Boot command lines are typed by people: errors must be reported, and the guest must still be
/// served.
#[test]
fn what_cannot_begin_says_why_and_the_service_goes_on() {
    let (_, service) = served();
    let good = BootRecording::always_on("flight");
    for (bad, word) in [
        (BootRecording { name: "", ..good }, "name"),
        (BootRecording { period_ns: 1, ..good }, "period"),
        (BootRecording { depth: 0, ..good }, "depth"),
    ] {
        let error = service.borrow_mut().start_at_boot(&bad).unwrap_err().to_string();
        assert!(error.contains("at boot") && error.contains(word), "{error}");
    }
    for name in ["a", "b", "c"] {
        service.borrow_mut().start_at_boot(&BootRecording { name, ..good }).unwrap();
    }
    let same = service.borrow_mut().start_at_boot(&BootRecording { name: "a", ..good });
    assert!(same.unwrap_err().to_string().contains("`a` is being recorded"));
    let many = service.borrow_mut().start_at_boot(&good).unwrap_err().to_string();
    assert!(many.contains("3 recordings"), "{many}");
    let mut client = Client::connect(&service);
    assert_eq!(recordings(&mut client).len(), 3);
}

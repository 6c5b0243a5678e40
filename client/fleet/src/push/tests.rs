//! Each target against a receiver that keeps to the engines' rules and fails as they do.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use unikprof_profile::profile::{Frame, Mode, Profile, ProfileBuilder, RecordingInfo};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_test_kit::engines::{Failure, Receiver};

use super::super::config::Login;
use super::*;

const PERIOD_NS: u64 = 10_000_000;

const ENGINES: &[Engine] = &[
    Engine::Pyroscope,
    Engine::Parca,
    #[cfg(feature = "otlp")]
    Engine::Otlp,
];

/// So many different stacks, all of the same depth, one sample each.
fn profile(stacks: u64, depth: u64) -> Profile {
    let mut builder = ProfileBuilder::new();
    builder.set_recording(RecordingInfo {
        period_ns: PERIOD_NS,
        started_unix_ns: Some(1),
        elapsed_ns: 1,
        ..RecordingInfo::default()
    });
    for stack in 0..stacks {
        let frame = |at| Frame::leaf(0x10_0000 + stack * depth + at);
        let frames: Vec<Frame> = (0..depth).map(frame).collect();
        builder.add_stack((stack % 2) as u32, 1, &frames).unwrap();
    }
    builder.finish()
}

fn guest() -> Guest {
    let labels = [("app", "web"), ("zone", "a")];
    Guest {
        labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
        ..Guest::named("web-1")
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos().try_into().unwrap()
}

/// A receiver, and what is delivered to it.
struct Case {
    receiver: Receiver,
    guest: Guest,
    from_unix_ns: u64,
    login: Option<Login>,
    /// How long a request may take.
    timeout: Duration,
}

impl Case {
    fn new() -> Case {
        Case {
            receiver: Receiver::start().unwrap(),
            guest: guest(),
            from_unix_ns: now_ns() - 15_000_000_000,
            login: None,
            timeout: Duration::from_secs(30),
        }
    }

    fn deliver(&self, engine: Engine, profile: &Profile) -> Verdict {
        self.deliver_to(&self.receiver.url(), engine, profile)
    }

    fn deliver_to(&self, url: &str, engine: Engine, profile: &Profile) -> Verdict {
        let remote = Remote {
            url: url.into(),
            tenant: Some("tenant-7".into()),
            login: self.login.clone(),
            ..Remote::default()
        };
        let http = |path| Http::with_timeout(&remote, path, self.timeout);
        let target: Box<dyn Target> = match engine {
            Engine::Pyroscope => Box::new(pyroscope::Pyroscope(http(pyroscope::PATH))),
            Engine::Parca => Box::new(parca::Parca(http(parca::PATH))),
            #[cfg(feature = "otlp")]
            Engine::Otlp => Box::new(otlp::Otlp(http(otlp::PATH))),
        };
        let symbolizer = Symbolizer::new(Images::new(ImageOptions::default()));
        let symbolized = symbolizer.resolve(profile).unwrap();
        target.deliver(&Delivery {
            guest: &self.guest,
            symbolized: &symbolized,
            from_unix_ns: self.from_unix_ns,
            to_unix_ns: self.from_unix_ns + 15_000_000_000,
        })
    }
}

fn reason(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Accepted => "",
        Verdict::Later { reason, .. } | Verdict::Never { reason, .. } => reason,
    }
}

fn is_later(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Later { .. })
}

fn is_never(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Never { .. })
}

#[test]
fn every_engine_gets_all_of_a_delivery_under_the_guests_labels() {
    for engine in ENGINES {
        let case = Case::new();
        let accepted = case.deliver(*engine, &profile(10, 3));
        assert_eq!(accepted, Verdict::Accepted);
        let received = case.receiver.received();
        assert_eq!(received.refused, [""; 0]);
        assert_eq!(received.tenant.as_deref(), Some("tenant-7"));
        assert_eq!(received.sum("cpu"), 10 * PERIOD_NS as i64);
        let (names, vcpu): (&[_], _) = match engine {
            Engine::Pyroscope | Engine::Parca => {
                let (name, service) = (("__name__", "process_cpu"), ("service_name", "web"));
                (&[name, service, ("guest", "web-1")], "vcpu")
            }
            #[cfg(feature = "otlp")]
            Engine::Otlp => {
                let service = ("service.name", "web");
                (&[service, ("service.instance.id", "web-1")], "cpu.logical_number")
            }
        };
        let of = |number: &'static str| {
            let own = [("app", "web"), ("zone", "a"), (vcpu, number)];
            let all = names.iter().chain(&own);
            all.map(|(key, value)| (key.to_string(), value.to_string())).collect::<BTreeMap<_, _>>()
        };
        assert!(received.series.keys().eq(&[of("0"), of("1")]), "{received:?}");
        for times in received.series.values() {
            assert!(times.keys().eq(&[case.from_unix_ns]));
            let taken = &times[&case.from_unix_ns];
            assert_eq!((taken.samples, taken.duration_ns), (5, 15_000_000_000));
        }
        // Nothing to say is no request.
        let none = case.deliver(*engine, &ProfileBuilder::new().finish());
        assert_eq!((none, case.receiver.received().requests), (Verdict::Accepted, 1));
    }
}

/// One above the limit would be rejected for good, and one above the burst would be tried for ever.
#[test]
fn pyroscope_gets_what_is_too_large_in_pieces() {
    for (stacks, depth, least) in [(16_500, 1, 2), (1_500, 40, 2)] {
        let case = Case::new();
        let large = profile(stacks, depth);
        let verdict = case.deliver(Engine::Pyroscope, &large);
        let received = case.receiver.received();
        assert_eq!(verdict, Verdict::Accepted, "{:?}", received.refused);
        assert!(received.requests >= least, "{}", received.requests);
        assert_eq!(received.sum("samples"), stacks as i64);
        assert_eq!(received.repeated(), 0, "pieces have times of their own");
        // Parca has no such limits.
        let whole = case.deliver(Engine::Parca, &large);
        assert_eq!(whole, Verdict::Accepted);
        assert_eq!(case.receiver.received().requests, received.requests + 1);
    }
}

/// Pyroscope drops the second of two profiles of one series with one time, so that a copy must have
/// the time of the first.
#[test]
fn a_second_delivery_is_the_first_one_again() {
    for engine in ENGINES {
        let case = Case::new();
        let small = profile(10, 3);
        case.receiver.fail_next([Failure::NoAnswer]);
        assert!(is_later(&case.deliver(*engine, &small)));
        let before = case.receiver.received();
        assert_eq!(before.repeated(), 0);
        assert_eq!(case.deliver(*engine, &small), Verdict::Accepted);
        let after = case.receiver.received();
        assert_eq!(after.repeated(), 2, "both vCPUs' series");
        assert_eq!(after.sum("cpu"), before.sum("cpu"));
        let ids = after.ids.len() / 2;
        assert_eq!(after.ids[..ids], after.ids[ids..]);
    }
    let case = Case::new();
    let large = profile(16_500, 1);
    case.receiver.fail_next([None, Some(Failure::Close)]);
    assert!(is_later(&case.deliver(Engine::Pyroscope, &large)));
    assert_eq!(case.receiver.received().sum("samples"), 15_999);
    assert_eq!(case.deliver(Engine::Pyroscope, &large), Verdict::Accepted);
    let received = case.receiver.received();
    assert_eq!((received.sum("samples"), received.repeated()), (16_500, 2));
}

#[test]
fn what_is_rejected_behind_accepted_pieces_is_told_as_accepted_in_part() {
    let case = Case::new();
    let large = profile(16_500, 1);
    let rejected = || Some(Failure::Status(400, Vec::new()));
    for (failures, expected) in [(vec![rejected()], false), (vec![None, rejected()], true)] {
        case.receiver.fail_next(failures);
        match case.deliver(Engine::Pyroscope, &large) {
            Verdict::Never { in_part, .. } => assert_eq!(in_part, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(case.receiver.received().sum("samples"), 15_999);
}

#[test]
fn each_answer_has_its_verdict() {
    let status = |status, headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        Failure::Status(status, headers.collect())
    };
    for engine in ENGINES {
        #[cfg(feature = "otlp")]
        let is_otlp = *engine == Engine::Otlp;
        #[cfg(not(feature = "otlp"))]
        let is_otlp = false;
        let case = Case::new();
        let small = profile(10, 3);
        let verdict = |failure: Failure| {
            case.receiver.fail_next([failure]);
            case.deliver(*engine, &small)
        };
        let after = |headers: &[(&str, &str)]| match verdict(status(429, headers)) {
            Verdict::Later { after, .. } => after,
            other => panic!("{other:?}"),
        };
        let retry = |value| [("Retry-After", value)];
        assert_eq!(after(&[]), None);
        assert_eq!(after(&retry("7")), Some(Duration::from_secs(7)));
        assert_eq!(after(&retry("Wed, 21 Oct 2099 07:28:00 GMT")), None);
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(after(&retry("18446744073709551615")), hour);
        for code in [401, 403, 404, 408, 413, 422, 429, 501, 502, 503, 504] {
            assert!(is_later(&verdict(status(code, &[]))), "{engine:?} {code}");
        }
        let never = verdict(status(400, &[]));
        let told = "answered 400: it was told to fail";
        assert!(is_never(&never) && reason(&never).ends_with(told), "{never:?}");
        // A collector's 500 is an error that it calls permanent.
        let internal = verdict(status(500, &[]));
        assert_eq!((is_later(&internal), is_never(&internal)), (!is_otlp, is_otlp));
        let moved = verdict(status(302, &[("Location", "http://127.0.0.1:1/login")]));
        assert!(
            is_later(&moved) && reason(&moved).ends_with("to http://127.0.0.1:1/login"),
            "{moved:?}"
        );
        // As of a proxy, or where TLS is spoken and the URL says `http`.
        for code in [400, 413, 422, 500] {
            let plain = verdict(Failure::Page(code));
            assert!(is_later(&plain), "{engine:?} {code}: {plain:?}");
        }
        let page = verdict(Failure::Page(200));
        assert!(is_later(&page) && reason(&page).contains("the engine's own address?"), "{page:?}");
        assert!(is_later(&verdict(Failure::Close)));
        assert_eq!(case.receiver.received().series, [].into(), "{engine:?}");
        // Engines write the status when they are done; but a part may be rejected in a collector's
        // answer.
        assert_eq!(verdict(Failure::HalfAnswer) == Verdict::Accepted, !is_otlp);
        let partial = verdict(Failure::Partial);
        assert_eq!(is_never(&partial), is_otlp, "{partial:?}");
        if is_otlp {
            assert!(reason(&partial).contains("no room"), "{partial:?}");
        }
    }
}

#[test]
fn an_engine_that_does_not_answer_is_left_for_later() {
    for engine in ENGINES {
        let case = Case { timeout: Duration::from_millis(200), ..Case::new() };
        let small = profile(10, 3);
        case.receiver.fail_next([Failure::Silence, Failure::Slow]);
        assert!(is_later(&case.deliver(*engine, &small)));
        assert!(is_later(&case.deliver(*engine, &small)));
        // Nobody listens there.
        let refused = case.deliver_to("http://127.0.0.1:1", *engine, &small);
        assert!(is_later(&refused) && reason(&refused).contains("127.0.0.1:1/"), "{refused:?}");
        assert_eq!(case.receiver.received().series, [].into());
    }
}

/// An engine that has read enough answers and closes: what it says must not be lost with the rest
/// of the request.
#[test]
fn an_answer_before_the_end_of_the_request_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote =
        Remote { url: format!("http://{}", listener.local_addr().unwrap()), ..Remote::default() };
    let engine = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines();
        while !lines.next().unwrap().unwrap().is_empty() {}
        let answer = b"HTTP/1.1 413 Status\r\nContent-Length: 8\r\n\r\ntoo much";
        stream.write_all(answer).unwrap();
    });
    let long = serde_json::Value::String("a".repeat(16 << 20));
    let verdict = Http::new(&remote, "/").push_json(&long);
    engine.join().unwrap();
    assert!(
        is_later(&verdict) && reason(&verdict).ends_with("answered 413: too much"),
        "{verdict:?}"
    );
}

#[test]
fn labels_keep_to_the_limits() {
    let mut case = Case::new();
    case.guest.labels.remove("app");
    for number in 0..40 {
        case.guest.labels.insert(format!("label_{number:02}"), "é".repeat(1025));
    }
    case.guest.labels.insert("empty".into(), String::new());
    let verdict = case.deliver(Engine::Pyroscope, &profile(2, 1));
    let received = case.receiver.received();
    assert_eq!(verdict, Verdict::Accepted, "{:?}", received.refused);
    for series in received.series.keys() {
        assert_eq!(series.len(), 29, "two less than 30 for vcpu and span, of which one is used");
        assert_eq!(series["guest"], "web-1");
        assert_eq!(series["service_name"], "web-1", "without a label for it");
        assert_eq!(series["label_00"], "é".repeat(1024));
        assert!(!series.contains_key("empty"));
    }
}

/// A token is replaced while the program runs, and a reason stands in logs.
#[test]
fn secrets_are_read_anew_and_never_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let logins = [
        (Login::Bearer { token_file: path.clone() }, "Bearer right"),
        // base64 of `me:right`
        (Login::Basic { username: "me".into(), password_file: path.clone() }, "Basic bWU6cmlnaHQ="),
    ];
    for (login, header) in logins {
        let case = Case { login: Some(login), ..Case::new() };
        case.receiver.demand("Authorization", header);
        let deliver = || case.deliver(Engine::Pyroscope, &profile(1, 1));
        fs::remove_file(&path).unwrap_or_default();
        let missing = deliver();
        assert!(is_later(&missing) && reason(&missing).contains("secret: "), "{missing:?}");
        fs::write(&path, "\nsecond").unwrap();
        assert!(reason(&deliver()).contains("in the first line"), "{:?}", deliver());
        fs::write(&path, "hidden\n").unwrap();
        let wrong = deliver();
        assert!(is_later(&wrong) && reason(&wrong).contains("answered 401"), "{wrong:?}");
        assert!(!reason(&wrong).contains("hidden"));
        fs::write(&path, "right\n").unwrap();
        assert_eq!(deliver(), Verdict::Accepted);
    }
}

#[test]
fn each_kind_of_time_has_its_name() {
    for (mode, name) in [(Mode::Wall, "wall"), (Mode::OffCpu, "off_cpu")] {
        let case = Case::new();
        let mut builder = ProfileBuilder::new();
        builder.set_recording(RecordingInfo { mode, ..RecordingInfo::default() });
        builder.add_stack(0, 5, &[Frame::leaf(0x10_0000)]).unwrap();
        let verdict = case.deliver(Engine::Pyroscope, &builder.finish());
        assert_eq!(verdict, Verdict::Accepted);
        let received = case.receiver.received();
        let names: Vec<_> = received.series.keys().map(|it| it["__name__"].as_str()).collect();
        assert_eq!(names, [name]);
    }
}

//! Who belongs to the fleet now: `fleet.toml` and the lists that it names, read again when they
//! change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use unikprof_link::deadline;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::key::Key;

use super::config::{Config, Guest, Place, TargetSource};
use super::member::{Member, log};
use super::shard::Shard;

/// How often files are looked at.
const FILES_EVERY: Duration = Duration::from_secs(5);

/// How often servers are asked for their lists, as Prometheus does.
const URLS_EVERY: Duration = Duration::from_secs(60);

/// Starts the thread that follows a guest.
pub(super) type Start = Box<dyn Fn(Arc<Member>) -> io::Result<()> + Send + Sync>;

/// The fleet.
pub(super) struct Roster {
    path: PathBuf,
    start: Start,
    members: RwLock<BTreeMap<String, Arc<Member>>>,
    /// Whether everything that is done with guests has ended; changed with `members` locked.
    has_ended: AtomicBool,
    source: Mutex<Source>,
}

/// What the members were made from.
#[derive(Debug)]
struct Source {
    config: Config,
    shard: Shard,
    lists: BTreeMap<Place, List>,
    /// What the log has been told.
    told: BTreeSet<String>,
}

/// A list as it was read last.
#[derive(Debug, Clone)]
struct List {
    read: Instant,
    /// What it was when it could be read; its guests are made anew, for they are also what
    /// `fleet.toml` says.
    bytes: Vec<u8>,
    /// Why it could not be read now.
    problem: Option<String>,
}

impl Roster {
    /// The fleet of a configuration, as much of it as the shard has; `start` is called for each
    /// guest that it has or will have.
    pub(super) fn new(path: PathBuf, config: Config, shard: Shard, start: Start) -> Roster {
        let roster = Roster {
            path,
            start,
            members: RwLock::default(),
            has_ended: AtomicBool::new(false),
            source: Mutex::new(Source::new(config, shard)),
        };
        roster.refresh(false);
        roster
    }

    /// Follows the files and lists until `ended`.
    pub(super) fn follow(&self, ended: &Interrupt) {
        while ended.sleep_until(deadline::after(FILES_EVERY), Interrupt::stop) {
            self.refresh(true);
        }
    }

    /// The members, by name.
    pub(super) fn members(&self) -> Vec<Arc<Member>> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.values().cloned().collect()
    }

    pub(super) fn member(&self, name: &str) -> Option<Arc<Member>> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.get(name).cloned()
    }

    /// Ends everything that is done with guests; no guest is followed any more.
    pub(super) fn end(&self) {
        let members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        self.has_ended.store(true, Ordering::Relaxed);
        for member in members.values() {
            member.leave();
        }
    }

    fn refresh(&self, again: bool) {
        let mut problems = Vec::new();
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if again {
            match Config::read(&self.path) {
                Ok(config) => {
                    let before = &mut source.config;
                    for (table, is_same) in [
                        ("[serve]", config.serve == before.serve),
                        ("[collect]", config.collect == before.collect),
                        ("[[push]]", config.push == before.push),
                    ] {
                        if !is_same {
                            problems.push(format!(
                                "{table} has changed: start the program again for it to take effect"
                            ));
                        }
                    }
                    before.guests = config.guests;
                    before.targets = config.targets;
                }
                Err(error) => problems.push(format!("{error}; the guests before are kept")),
            }
        }
        let wanted = source.wanted(&mut problems);
        problems.extend(wanted.values().filter_map(missing_files));
        let lists: BTreeSet<Place> =
            source.config.targets.iter().map(|list| list.place.clone()).collect();
        source.lists.retain(|place, _| lists.contains(place));
        problems.extend(self.become_these(wanted));
        // What was told already is not told every few seconds.
        for problem in &problems {
            if !source.told.contains(problem) {
                log(&format!("warning: {problem}"));
            }
        }
        source.told = problems.into_iter().collect();
    }

    /// Has these members from now on, each with a thread; answers for which there is none: those
    /// are tried again the next time.
    fn become_these(&self, wanted: BTreeMap<String, Guest>) -> Vec<String> {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended.load(Ordering::Relaxed) {
            return Vec::new();
        }
        members.retain(|name, member| {
            let stays = wanted.get(name) == Some(&member.guest);
            if !stays {
                member.leave();
            }
            stays
        });
        let mut problems = Vec::new();
        for (name, guest) in wanted {
            let member = members.entry(name).or_insert_with(|| Arc::new(Member::new(guest)));
            if !member.known().is_followed {
                let started = (self.start)(member.clone());
                let mut known = member.known();
                known.is_followed = started.is_ok();
                if let Err(error) = started {
                    let problem = format!("no thread asks it: {error}");
                    problems.push(format!("guest `{}`: {problem}", member.guest.name));
                    known.failure = Some(problem);
                }
            }
        }
        problems
    }
}

impl Source {
    fn new(config: Config, shard: Shard) -> Source {
        Source { config, shard, lists: BTreeMap::new(), told: BTreeSet::new() }
    }

    /// The guests of the file and of its lists, by name.
    fn wanted(&mut self, problems: &mut Vec<String>) -> BTreeMap<String, Guest> {
        let mut wanted: BTreeMap<String, Guest> = BTreeMap::new();
        for guest in self.config.guests.clone() {
            wanted.insert(guest.name.clone(), guest);
        }
        for list in self.config.targets.clone() {
            for guest in self.listed(&list, problems) {
                if let Some(other) = wanted.get(&guest.name) {
                    if *other != guest {
                        problems.push(format!(
                            "{}: another guest is named `{}` too",
                            list.place, guest.name
                        ));
                    }
                    continue;
                }
                wanted.insert(guest.name.clone(), guest);
            }
        }
        wanted.retain(|name, _| self.shard.has(name));
        wanted
    }

    /// The guests of a list; those that it had if it cannot be read now.
    fn listed(&mut self, list: &TargetSource, problems: &mut Vec<String>) -> Vec<Guest> {
        let every = match list.place {
            Place::File(_) => Duration::ZERO,
            Place::Url(_) => URLS_EVERY,
        };
        let before = self.lists.remove(&list.place);
        let now = match before {
            Some(before) if before.read.elapsed() < every => before,
            before => {
                let (bytes, problem) = match list.read() {
                    Ok(bytes) => (bytes, None),
                    Err(mistake) => {
                        let bytes = before.map_or_else(|| b"[]".to_vec(), |it| it.bytes);
                        (bytes, Some(mistake.to_string()))
                    }
                };
                List { read: Instant::now(), bytes, problem }
            }
        };
        problems.extend(now.problem.clone());
        // It was a list when it was read.
        let (guests, mistakes) = list.parse(&now.bytes).unwrap_or_default();
        problems.extend(mistakes.iter().map(ToString::to_string));
        self.lists.insert(list.place.clone(), now);
        guests
    }
}

/// The guests that the file and its lists have now, by name, and what is wrong with others.
pub(super) fn listed_now(config: Config) -> (Vec<Guest>, Vec<String>) {
    let mut problems = Vec::new();
    let guests = Source::new(config, Shard::ALL).wanted(&mut problems).into_values().collect();
    (guests, problems)
}

/// What is wrong with the files that a guest's entry names.
fn missing_files(guest: &Guest) -> Option<String> {
    let how = &guest.how;
    let key = how.key_file.as_deref().and_then(|path| Key::read(path).err());
    let key = key.map(|error| error.to_string());
    let others = [&how.image, &how.symbols].into_iter().flatten();
    let missing = others
        .filter_map(|path| Some(format!("{}: {}", path.display(), fs::metadata(path).err()?)));
    let problem = key.into_iter().chain(missing).next()?;
    Some(format!("guest `{}`: {problem}", guest.name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::AtomicU32;

    use super::super::config::How;
    use super::*;

    /// A fleet of this text in a file, and how often a thread was started for a guest; the first
    /// time fails, if so.
    struct Fleet {
        _folder: tempfile::TempDir,
        path: PathBuf,
        roster: Roster,
        starts: Arc<AtomicU32>,
    }

    impl Fleet {
        fn new(text: &str, fails: bool) -> Fleet {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("fleet.toml");
            fs::write(&path, text).unwrap();
            let starts = Arc::new(AtomicU32::new(0));
            let counted = starts.clone();
            let start = Box::new(move |_| match counted.fetch_add(1, Ordering::Relaxed) {
                0 if fails => Err(io::Error::other("full")),
                _ => Ok(()),
            });
            let config = Config::read(&path).unwrap();
            Fleet {
                roster: Roster::new(path.clone(), config, Shard::ALL, start),
                _folder: folder,
                path,
                starts,
            }
        }

        fn starts(&self) -> u32 {
            self.starts.load(Ordering::Relaxed)
        }
    }

    /// A machine may have no thread left for a moment.
    #[test]
    fn a_guest_that_could_not_be_asked_is_tried_again() {
        let fleet = Fleet::new("[[targets]]\nfile = \"none\"", true);
        let roster = &fleet.roster;
        let wanted = || BTreeMap::from([("web".to_owned(), Guest::named("web"))]);
        let problems = roster.become_these(wanted());
        assert_eq!(problems, ["guest `web`: no thread asks it: full"]);
        let failure = roster.member("web").unwrap().known().failure.clone();
        assert_eq!(failure.as_deref(), Some("no thread asks it: full"));
        assert_eq!(roster.become_these(wanted()), [""; 0]);
        assert_eq!(roster.become_these(wanted()), [""; 0]);
        assert_eq!(fleet.starts(), 2, "it is asked already");
    }

    /// The files may be read at the moment at which everything ends: nobody would end who came
    /// after that.
    #[test]
    fn nobody_joins_a_fleet_that_has_ended() {
        let guest = |name| format!("[[guests]]\nname = \"{name}\"\naddress = \"10.0.0.5\"");
        let fleet = Fleet::new(&guest("web"), false);
        assert_eq!(fleet.starts(), 1);
        fleet.roster.end();
        fs::write(&fleet.path, guest("db")).unwrap();
        fleet.roster.refresh(true);
        assert_eq!(fleet.starts(), 1);
    }

    #[test]
    fn a_file_with_a_mistake_changes_nothing() {
        let guest = |name, rate| {
            format!("[[guests]]\nname = \"{name}\"\naddress = \"10.0.0.5\"\nrate = {rate}\n")
        };
        let fleet = Fleet::new(&guest("web", 97), false);
        fs::write(&fleet.path, guest("db", 97) + &guest("cache", 0)).unwrap();
        fleet.roster.refresh(true);
        let names = || fleet.roster.members().iter().map(|it| it.guest.name.clone()).collect();
        let names: [Vec<String>; 2] = [names(), {
            fs::write(&fleet.path, guest("db", 97)).unwrap();
            fleet.roster.refresh(true);
            names()
        }];
        assert_eq!(names, [["web"], ["db"]]);
    }

    #[test]
    fn what_is_read_at_the_start_only_is_told_when_it_changes() {
        const LIST: &str = "\n[[targets]]\nfile = \"none\"";
        let fleet = Fleet::new(LIST, false);
        for (table, rest) in [
            ("[serve]", "every = \"7s\""),
            ("[collect]", "every = \"7s\""),
            ("[[push]]", "kind = \"folder\"\npath = \"recordings\""),
        ] {
            fs::write(&fleet.path, format!("{table}\n{rest}{LIST}")).unwrap();
            fleet.roster.refresh(true);
            let source = fleet.roster.source.lock().unwrap();
            let told = source.told.iter().filter(|it| it.contains("has changed"));
            let expected =
                format!("{table} has changed: start the program again for it to take effect");
            assert!(told.eq([&expected]), "{table}");
        }
    }

    /// A key that is asked for from now on is asked for whether the list can be read or not.
    #[test]
    fn a_list_that_is_gone_keeps_its_guests_with_the_settings_of_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.json");
        fs::write(&path, r#"[{"targets": ["10.0.0.5"]}]"#).unwrap();
        let list = |key: Option<&str>| TargetSource {
            place: Place::File(path.clone()),
            labels: BTreeMap::new(),
            how: How { key_file: key.map(Into::into), ..How::default() },
        };
        fs::write(folder.path().join("fleet.toml"), "[[targets]]\nfile = \"targets.json\"")
            .unwrap();
        let config = Config::read(&folder.path().join("fleet.toml")).unwrap();
        let mut source = Source::new(config, Shard::ALL);
        let mut problems = Vec::new();
        assert_eq!(source.listed(&list(None), &mut problems)[0].how.key_file, None);
        assert_eq!(problems, [""; 0]);
        fs::remove_file(&path).unwrap();
        let guests = source.listed(&list(Some("key")), &mut problems);
        assert_eq!(guests[0].how.key_file, Some("key".into()));
        assert!(problems[0].contains("cannot read the list"), "{problems:?}");
    }
}

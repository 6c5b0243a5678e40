//! pprof's messages, by `proto/profile.proto` of google/pprof, and what readers of them demand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use flate2::read::GzDecoder;
use prost::Message;

use super::{Refusal, Series, Taken};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The functions that a profile names, which must keep to the rules.
///
/// # Errors
/// The rule that is broken.
pub fn functions(profile: &[u8]) -> Result<BTreeSet<String>, String> {
    let named = || -> Result<BTreeSet<String>, Refusal> {
        let (profile, _) = Profile::read(profile, usize::MAX - 1)?;
        profile.check()?;
        let names = profile.function.iter().map(|it| profile.text(it.name));
        names.map(|name| Ok(name?.to_owned())).collect()
    };
    named().map_err(|refusal| refusal.text)
}

impl Profile {
    /// Reads a profile of at most so many bytes, compressed or not, and says how many it has
    /// uncompressed.
    pub(super) fn read(bytes: &[u8], most: usize) -> Result<(Profile, usize), Refusal> {
        let mut plain = Vec::new();
        let mut source: Box<dyn std::io::Read> = match bytes {
            [0x1f, 0x8b, ..] => Box::new(GzDecoder::new(bytes)),
            _ => Box::new(bytes),
        };
        let read = source.by_ref().take(most as u64 + 1).read_to_end(&mut plain);
        read.map_err(|error| Refusal::invalid(format!("decompressing the profile: {error}")))?;
        if plain.len() > most {
            let text = format!("the uncompressed profile exceeds the limit of {most} bytes");
            return Err(Refusal::invalid(text));
        }
        let profile = Profile::decode(&*plain)
            .map_err(|error| Refusal::invalid(format!("cannot parse the profile: {error}")))?;
        Ok((profile, plain.len()))
    }

    fn text(&self, at: i64) -> Result<&str, Refusal> {
        let text = usize::try_from(at).ok().and_then(|at| self.string_table.get(at));
        text.map(String::as_str)
            .ok_or_else(|| Refusal::invalid(format!("string {at} is out of range")))
    }

    /// Parca's rules, which contain Pyroscope's: every index lies inside its table, and ids are
    /// places.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let is = |right: bool, rule: &str| match right {
            true => Ok(()),
            false => Err(Refusal::invalid(format!("invalid profile: {rule}"))),
        };
        let inside = |id: u64, table: usize| id <= table as u64;
        is(self.string_table.first().is_some_and(String::is_empty), "string 0 is not empty")?;
        let (mut mappings, mut functions) = (1.., 1..);
        for mapping in &self.mapping {
            is(Some(mapping.id) == mappings.next(), "mapping id is not sequential")?;
            self.text(mapping.filename)?;
            self.text(mapping.build_id)?;
        }
        for function in &self.function {
            is(Some(function.id) == functions.next(), "function id is not sequential")?;
            self.text(function.name)?;
            self.text(function.system_name)?;
            self.text(function.filename)?;
        }
        for (at, location) in self.location.iter().enumerate() {
            is(location.id == at as u64 + 1, "location id is not sequential")?;
            is(inside(location.mapping_id, self.mapping.len()), "no such mapping")?;
            let mut lines = location.line.iter();
            let known = lines.all(|line| inside(line.function_id, self.function.len()));
            is(known, "no such function")?;
        }
        is(!self.sample_type.is_empty(), "there is no sample type")?;
        for of in self.sample_type.iter().chain(&self.period_type) {
            is(!self.text(of.kind)?.contains('-'), "a sample type contains -")?;
            self.text(of.unit)?;
        }
        for sample in &self.sample {
            is(sample.value.len() == self.sample_type.len(), "values and types differ in number")?;
            let mut ids = sample.location_id.iter();
            let known = ids.all(|id| *id != 0 && inside(*id, self.location.len()));
            is(known, "no such location")?;
            for label in &sample.label {
                is(label.key != 0, "a label has no key")?;
            }
        }
        Ok(())
    }

    /// The profiles of the series that the labels of samples make.
    pub(super) fn by_series(&self, series: &Series) -> Result<Vec<(Series, u64, Taken)>, Refusal> {
        let unix_ns = u64::try_from(self.time_nanos).unwrap_or(0);
        let mut all: BTreeMap<Series, Taken> = BTreeMap::new();
        for sample in &self.sample {
            let mut of = series.clone();
            for label in sample.label.iter().filter(|label| label.text != 0) {
                let (key, value) = (self.text(label.key)?, self.text(label.text)?);
                of.entry(key.into()).or_insert_with(|| value.into());
            }
            let taken = all.entry(of).or_default();
            taken.samples += 1;
            taken.duration_ns = u64::try_from(self.duration_nanos).unwrap_or(0);
            for (of, value) in self.sample_type.iter().zip(&sample.value) {
                let kind = self.text(of.kind)?.to_owned();
                *taken.values.entry(kind).or_default() += value;
            }
        }
        let with_time = |(series, taken)| (series, unix_ns, taken);
        Ok(all.into_iter().map(with_time).collect())
    }
}

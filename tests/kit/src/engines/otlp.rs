//! `ExportProfilesServiceRequest` of OpenTelemetry, by the crate that its definitions are published
//! in.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    KeyValueAndUnit, ProfilesDictionary, Stack,
};
use prost::Message;

use super::{Batch, Refusal, Series, Taken};

pub(super) const PROTOBUF: &str = "application/x-protobuf";

pub(super) fn batch(body: &[u8]) -> Result<Batch, Refusal> {
    let request = ExportProfilesServiceRequest::decode(body)
        .map_err(|error| Refusal::invalid(error.to_string()))?;
    let tables = request
        .dictionary
        .ok_or_else(|| Refusal::invalid("missing profile metadata dictionary"))?;
    check(&tables)?;
    let mut batch = Batch::default();
    for of_resource in request.resource_profiles {
        let resource = of_resource.resource.unwrap_or_default();
        let attributes = resource.attributes.into_iter();
        let resource: Series =
            attributes.map(|attribute| (attribute.key, shown(attribute.value))).collect();
        if resource.get("service.name").is_none_or(String::is_empty) {
            return Err(Refusal::invalid("the resource has no service.name"));
        }
        let scopes = of_resource.scope_profiles.into_iter();
        for profile in scopes.flat_map(|scope| scope.profiles) {
            let of = profile.sample_type.unwrap_or_default();
            let kind = text(&tables, of.type_strindex)?;
            let mut all: BTreeMap<Series, Taken> = BTreeMap::new();
            for sample in profile.samples {
                at::<Stack>(&tables.stack_table, sample.stack_index)?;
                let mut series = resource.clone();
                for index in sample.attribute_indices {
                    let attribute: &KeyValueAndUnit = at(&tables.attribute_table, index)?;
                    let key = text(&tables, attribute.key_strindex)?;
                    series.insert(key.into(), shown(attribute.value.clone()));
                }
                let taken = all.entry(series).or_default();
                taken.samples += 1;
                taken.duration_ns = profile.duration_nano;
                let sum: i64 = sample.values.iter().sum();
                *taken.values.entry(kind.into()).or_default() += sum;
            }
            let with_time = |(series, taken)| (series, profile.time_unix_nano, taken);
            batch.profiles.extend(all.into_iter().map(with_time));
        }
    }
    Ok(batch)
}

/// The rules of `profiles.proto`: every index lies inside its table.
fn check(tables: &ProfilesDictionary) -> Result<(), Refusal> {
    let is_first_empty = tables.string_table.first().is_some_and(String::is_empty);
    if !is_first_empty {
        return Err(Refusal::invalid("string 0 is not empty"));
    }
    for stack in &tables.stack_table {
        for index in &stack.location_indices {
            at(&tables.location_table, *index)?;
        }
    }
    for location in &tables.location_table {
        at(&tables.mapping_table, location.mapping_index)?;
        for line in &location.lines {
            at(&tables.function_table, line.function_index)?;
        }
    }
    for function in &tables.function_table {
        text(tables, function.name_strindex)?;
        text(tables, function.filename_strindex)?;
    }
    Ok(())
}

fn at<T>(table: &[T], index: i32) -> Result<&T, Refusal> {
    let found = usize::try_from(index).ok().and_then(|at| table.get(at));
    found.ok_or_else(|| Refusal::invalid(format!("index {index} is out of range")))
}

fn text(tables: &ProfilesDictionary, index: i32) -> Result<&str, Refusal> {
    at(&tables.string_table, index).map(String::as_str)
}

fn shown(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

/// A success of which nothing was taken.
pub(super) fn partial() -> Vec<u8> {
    let partial_success = Some(ExportProfilesPartialSuccess {
        rejected_profiles: 1,
        error_message: "no room".into(),
    });
    ExportProfilesServiceResponse { partial_success }.encode_to_vec()
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

pub(super) fn error(refusal: &Refusal) -> Vec<u8> {
    let code = match refusal.status {
        400 => 3,
        429 => 8,
        500 => 13,
        503 => 14,
        _ => 2,
    };
    let message = refusal.text.clone();
    Status { code, message }.encode_to_vec()
}

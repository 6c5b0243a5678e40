//! How the vCPUs' time was spent, how late samples were, and what sampling cost.

use std::io::{self, Write};

use super::units::{duration, grouped, share, two_digits};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Cost, Distribution, Profile, RecordingInfo, Runstate};

/// The longest bar of the histogram, in columns.
const BAR: u64 = 40;

pub(super) fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    write_kinds_of_time(profile, out)?;
    write_lateness(profile, out)?;
    let recording = profile.recording();
    // Measured for whole recordings alone.
    if recording.ring.is_some() || !recording.guests.is_empty() {
        return Ok(());
    }
    write_cost(profile, out)
}

fn write_kinds_of_time(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let vcpus = profile.vcpus();
    if vcpus.is_empty() {
        return Ok(());
    }
    let guests: Vec<String> =
        profile.recording().guests.iter().map(|name| Printable(name).to_string()).collect();
    let (heading, width) = match guests.iter().map(|name| name.chars().count()).max() {
        Some(longest) => ("guest", longest.max(5)),
        None => ("vcpu", 4),
    };
    writeln!(
        out,
        "\nshares of all time\n\
         {heading:>width$}     running      stolen     blocked     offline    recorded"
    )?;
    let mut line = |name: &str, r: &Runstate, elapsed_ns: u64, recorded: u64| {
        write!(out, "{name:>width$}")?;
        let times = [r.running_ns, r.runnable_ns, r.blocked_ns, r.offline_ns];
        // A host may count a wait later than it began: together they are a little more or less than
        // the time that has passed.
        let all_ns = times.into_iter().try_fold(0, |all: u64, ns| Some(all.saturating_add(ns?)));
        let all_ns = all_ns.unwrap_or(elapsed_ns);
        for time in times {
            let shown = match time {
                Some(ns) => share(ns, all_ns),
                None => "unknown".to_owned(),
            };
            write!(out, "  {shown:>10}")?;
        }
        writeln!(out, "  {:>10}", grouped(recorded))
    };
    for vcpu in vcpus {
        let number = vcpu.vcpu.to_string();
        line(
            guests.get(vcpu.vcpu as usize).unwrap_or(&number),
            &vcpu.runstate,
            vcpu.elapsed_ns,
            vcpu.counters.recorded,
        )?;
    }
    if vcpus.len() > 1 {
        let elapsed = vcpus.iter().fold(0, |sum: u64, v| sum.saturating_add(v.elapsed_ns));
        let recorded = profile.counters().recorded;
        line("all", &profile.runstate(), elapsed, recorded)?;
    }
    let unknown = |r: &Runstate| r.runnable_ns.is_none() || r.blocked_ns.is_none();
    if vcpus.iter().any(|vcpu| unknown(&vcpu.runstate)) {
        let why = match profile.recording().ring.as_ref().map(|ring| &ring.inside) {
            None => {
                "the guest's platform does not report these times; running time is by the \
                 sampler's own clock"
            }
            Some(None) => {
                "the ring has these times too rarely for the window, or the guest's platform does \
                 not report them"
            }
            Some(Some(_)) => "these times are recorded per vCPU, not per span",
        };
        writeln!(out, "unknown: {why}")?;
    }
    Ok(())
}

fn write_lateness(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let Some(all) = profile.lateness_ns().filter(|all| all.count() != 0) else {
        return Ok(());
    };
    writeln!(out, "\nsampling latency (running time from a sample's target to its delivery)")?;
    if profile.vcpus().len() > 1 {
        for vcpu in profile.vcpus() {
            match &vcpu.lateness_ns {
                Some(lateness) => {
                    writeln!(out, "  vcpu {:<4} {}", vcpu.vcpu, quantiles(lateness))?;
                }
                None => writeln!(out, "  vcpu {:<4} not measured", vcpu.vcpu)?,
            }
        }
    }
    writeln!(out, "  all       {}", quantiles(&all))?;
    let steps = all.coarse();
    let most = steps.iter().map(|step| step.count).max().unwrap_or(0);
    let last = steps.len().saturating_sub(1);
    for (at, step) in steps.iter().enumerate() {
        let to = match at {
            // The last one's end says less than the greatest value there was.
            at if at == last => all.max().max(step.from),
            _ => step.to.saturating_add(1),
        };
        // A part that is there never shows as nothing.
        let bar = u128::from(step.count) * u128::from(BAR);
        let bar = bar.div_ceil(u128::from(most.max(1))) as usize;
        let range = format!("{:>8} - {:>8}", duration(step.from), duration(to));
        let line = format!("  {range}  {:>10}  {}", grouped(step.count), "#".repeat(bar));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn quantiles(of: &Distribution) -> String {
    percentiles(of.percentile(50), of.percentile(99), of.max(), duration)
}

/// Percentiles out of buckets: only up to where a bucket goes is known.
fn percentiles(p50: u64, p99: u64, max: u64, text: impl Fn(u64) -> String) -> String {
    let bound = |end: u64| {
        if end == max { text(max) } else { text(two_digits(end)) }
    };
    format!("p50 ≤ {}, p99 ≤ {}, max {}", bound(p50), bound(p99), text(max))
}

fn write_cost(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let RecordingInfo { server_ns, elapsed_ns, .. } = *profile.recording();
    writeln!(out, "\nthe agent's own overhead")?;
    let of_running = |share: Option<f64>| {
        share.map_or_else(String::new, |share| format!(" ({:.3} % of running)", share * 100.0))
    };
    for vcpu in profile.vcpus() {
        let Some(cost) = &vcpu.cost else {
            writeln!(out, "  vcpu {:<4} sampling was not measured", vcpu.vcpu)?;
            continue;
        };
        if vcpu.counters.ticks == 0 && cost.sampling_ns == 0 {
            writeln!(out, "  vcpu {:<4} nothing was sampled", vcpu.vcpu)?;
            continue;
        }
        writeln!(
            out,
            "  vcpu {:<4} {}{}{}",
            vcpu.vcpu,
            cost.text(),
            of_running(vcpu.cost_share()),
            match cost.cycles_max {
                // Blocked time is measured, without samples.
                0 => String::new(),
                max => format!(
                    "; cycles per sample: {}",
                    percentiles(cost.cycles_p50, cost.cycles_p99, max, grouped)
                ),
            }
        )?;
    }
    let costs: Vec<Cost> = profile.vcpus().iter().filter_map(|v| v.cost).collect();
    if costs.len() > 1 && costs.iter().any(|cost| cost.sampling_ns != 0) {
        let total = costs.iter().fold(Cost::default(), |sum, cost| sum.plus(cost));
        writeln!(out, "  all       {}{}", total.text(), of_running(profile.cost_share()))?;
    }
    writeln!(
        out,
        "  network   {} ({} of the recording)",
        duration(server_ns),
        share(server_ns, elapsed_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket tells up to where its values go, and no more: 9,300 ns lie in the one that ends
    /// with 10,239 ns.
    #[test]
    fn percentiles_are_shown_as_bounds() {
        let lateness = Distribution::from_values([(9_300, 99), (70_123, 1)]);
        assert_eq!(quantiles(&lateness), "p50 ≤ 11 µs, p99 ≤ 11 µs, max 70.1 µs");
        let one = Distribution::from_values([(70_123, 1)]);
        assert_eq!(quantiles(&one), "p50 ≤ 70.1 µs, p99 ≤ 70.1 µs, max 70.1 µs");
    }
}

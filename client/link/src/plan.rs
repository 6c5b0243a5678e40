//! From patterns and images to what an agent is asked to trace: `probes` finds where the probes of
//! a function go.

mod probes;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;
use unikprof_proto::trace::{MAX_FUNCTIONS, function_flag};

use crate::record::{OrderedFunction, OrderedProbe, TraceOrder};
use probes::{PlanError, PlannedFunction, Planner};
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Architecture, Mapping};
use unikprof_profile::symbols::{Image, SymbolError, Symbolizer};
use unikprof_profile::trace::{Order, Pattern};

/// What the user wants to trace.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Which functions.
    pub patterns: Vec<Pattern>,
    /// Only within calls of these; they are traced as well.
    pub inside: Option<Pattern>,
    /// What the matching functions call directly is traced as well, and so on so often.
    pub depth: usize,
    /// What is shown of the trace, by option: each must match a function of it.
    pub shown: Vec<(&'static str, Pattern)>,
    /// Whether no calls are kept one by one.
    pub count_only: bool,
    /// Calls of at least so many ns are kept one by one; 0: all.
    pub slow_ns: u64,
    /// The share of a vCPU that the trace may take, in 1/1000.
    pub max_cost_permille: u32,
    /// For how long.
    pub duration_ns: u64,
}

/// Why nothing can be traced.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Error)]
pub enum OrderError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    #[error("the guest's processor is {found}: functions are traced on x86_64 only")]
    Architecture { found: String },
    #[error(
        "no image of the guest's program was found: name it with --image, as functions are found \
         in it"
    )]
    NoImage,
    #[error(
        "functions of {path} cannot be traced in a process: the C library runs some of them while \
         signals are blocked, and a breakpoint there ends the process"
    )]
    CLibrary { path: String },
    #[error("no function matches `{pattern}`{similar}")]
    NoMatch {
        pattern: String,
        /// Names of functions that may be meant, in words.
        similar: String,
    },
    #[error("{option}: no function of the trace matches `{pattern}`{similar}")]
    NotShown {
        option: &'static str,
        pattern: String,
        /// The reason, or names of functions that may be meant, in words.
        similar: String,
    },
    #[error(
        "{matched} functions match, and a trace has at most {MAX_FUNCTIONS}: narrow the patterns{}",
        if *has_depth { ", or lower --depth" } else { "" }
    )]
    TooMany { matched: usize, has_depth: bool },
    #[error("none of the {} matching functions can be traced: {}", refused.len(), reasons(refused))]
    AllRefused { refused: Vec<(String, String)> },
}

fn reasons(refused: &[(String, String)]) -> String {
    const MOST: usize = 5;
    let named = refused.iter().take(MOST);
    let named = named.map(|(name, reason)| format!("`{}` ({reason})", Printable(name)));
    named.collect::<Vec<_>>().join(", ")
}

/// An image that the guest runs, and where its code is.
struct Placed<'i> {
    image: &'i Image,
    planner: Planner<'i>,
    /// Its mappings, and the code of the first address of each.
    mappings: Vec<(u32, &'i Mapping)>,
}

/// The order, and how it names the callers of functions.
pub struct Placement<'i> {
    images: Vec<Placed<'i>>,
}

/// A function of one of the images.
type Chosen = (usize, usize);

/// Plans what is wanted for the images that the guest runs, and passes it on: the images are not
/// needed longer.
pub fn plan<T>(
    symbolizer: &Symbolizer,
    agent: &AgentInfo,
    wanted: &Wanted,
    proceed: impl FnOnce(&TraceOrder, &Placement<'_>) -> T,
) -> Result<T, OrderError> {
    let architecture = Architecture::from_name(&agent.architecture);
    if architecture != Architecture::X86_64 {
        return Err(OrderError::Architecture { found: Printable(&agent.architecture).to_string() });
    }
    let mappings: Vec<Mapping> = agent.mappings.iter().cloned().collect();
    let images = symbolizer.images();
    let assignment = images.assign(&mappings, &architecture, &mut Vec::new())?;
    let mut placement = Placement { images: Vec::new() };
    for group in &assignment.groups {
        let Some(assigned) = &group.image else {
            continue;
        };
        // Of the images that were found by the guest's own paths, the program's alone: nobody asked
        // for its libraries.
        if !assigned.is_named() && !group.mappings.contains(&0) {
            continue;
        }
        let paths = group.mappings.iter().map(|at| mappings[*at].path.as_str());
        let c_library =
            (agent.platform == "hosted").then(|| paths.clone().find(|it| is_c_library(it)));
        if let Some(path) = c_library.flatten() {
            return Err(OrderError::CLibrary { path: Printable(path).to_string() });
        }
        let codes = agent.mappings.codes().enumerate();
        let codes = codes.filter(|(at, _)| group.mappings.contains(at));
        placement.images.push(Placed {
            image: assigned.image(),
            planner: Planner::of(assigned.image(), &images.options.debug_dirs)?,
            mappings: codes.map(|(_, mapping)| mapping).collect(),
        });
    }
    if placement.images.is_empty() {
        return Err(OrderError::NoImage);
    }
    let order = placement.order(wanted)?;
    Ok(proceed(&order, &placement))
}

/// Whether a file is a part of the C library of Linux, by its path.
fn is_c_library(path: &str) -> bool {
    const PREFIXES: [&str; 5] = ["libc.so", "libc-", "libpthread", "ld-linux", "ld-musl"];
    let name = path.rsplit('/').next().unwrap_or(path);
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

impl Placement<'_> {
    /// The name of the function that holds a code.
    pub fn name(&self, code: u32) -> Option<String> {
        self.images.iter().find_map(|placed| {
            let linked = placed.mappings.iter().find_map(|(base, mapping)| {
                let address = mapping.start.checked_add(u64::from(code.checked_sub(*base)?))?;
                // A return address may be the one after the mapping's last.
                let before = address.checked_sub(1)?;
                let within = mapping.contains(before).then_some(before)?;
                placed.image.link_address(mapping, within)
            })?;
            let function = placed.planner.covering(linked)?;
            Some(placed.planner.name(function).to_owned())
        })
    }

    fn order(&self, wanted: &Wanted) -> Result<TraceOrder, OrderError> {
        // With a limit for slow calls, it is for the functions of the first pattern.
        let mut roots: BTreeSet<Chosen> = BTreeSet::new();
        let mut named: BTreeSet<Chosen> = BTreeSet::new();
        for (at, pattern) in wanted.patterns.iter().enumerate() {
            let found = self.matching(pattern);
            if found.is_empty() {
                return Err(self.no_match(pattern));
            }
            if at == 0 {
                roots.extend(&found);
            }
            named.extend(found);
        }
        let mut chosen = named.clone();
        let mut last = named;
        for _ in 0..wanted.depth {
            let callees = last.iter().flat_map(|&(image, function)| {
                let callees = self.images[image].planner.callees(function);
                callees.into_iter().map(move |callee| (image, callee))
            });
            last = callees.filter(|it| !chosen.contains(it)).collect();
            chosen.extend(&last);
        }
        if let Some(inside) = &wanted.inside {
            let found = self.matching(inside);
            if found.is_empty() {
                return Err(self.no_match(inside));
            }
            chosen.extend(found);
        }
        let mut planned: BTreeMap<Chosen, PlannedFunction> = BTreeMap::new();
        let mut refused = Vec::new();
        for &(image, function) in &chosen {
            let planner = &self.images[image].planner;
            match planner.plan(function) {
                Ok(plan) => {
                    planned.insert((image, function), plan);
                }
                Err(refusal) => {
                    refused.push((planner.name(function).to_owned(), refusal.to_string()));
                }
            }
            if planned.len() > MAX_FUNCTIONS {
                let matched = chosen.len();
                let has_depth = wanted.depth > 0;
                return Err(OrderError::TooMany { matched, has_depth });
            }
        }
        let mut functions = Vec::new();
        for ((image, function), plan) in planned {
            let placed = &self.images[image];
            let name = placed.planner.name(function);
            let is_root = wanted.slow_ns > 0 && roots.contains(&(image, function));
            let flags = [(is_root, function_flag::ROOT), (plan.loops, function_flag::LOOPS)];
            let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
            let flags = flags.fold(0, |flags, (_, flag)| flags | flag);
            match placed.place(name, flags, &plan) {
                Some(function) => functions.push(function),
                None => refused.push((
                    name.to_owned(),
                    "the guest does not map its code as the image has it".to_owned(),
                )),
            }
        }
        if functions.is_empty() {
            return Err(OrderError::AllRefused { refused });
        }
        check_shown(wanted, &functions, &refused)?;
        let patterns = wanted.patterns.iter().map(ToString::to_string);
        Ok(TraceOrder {
            order: Order {
                patterns: patterns.collect::<Vec<_>>().join(" "),
                inside: wanted.inside.as_ref().map_or_else(String::new, ToString::to_string),
                count_only: wanted.count_only,
                slow_ns: wanted.slow_ns,
                max_cost_permille: wanted.max_cost_permille,
            },
            functions,
            refused,
            duration_ns: wanted.duration_ns,
        })
    }

    /// The functions that a pattern means.
    fn matching(&self, pattern: &Pattern) -> Vec<Chosen> {
        let images = self.images.iter().enumerate();
        let all = images.flat_map(|(image, placed)| {
            (0..placed.planner.len()).map(move |function| (image, function))
        });
        let is_meant = |&(image, function): &Chosen| {
            let planner = &self.images[image].planner;
            let raw = planner.raw_names(function);
            pattern.matches(planner.name(function)) || raw.iter().any(|it| pattern.matches(it))
        };
        all.filter(is_meant).collect()
    }

    fn no_match(&self, pattern: &Pattern) -> OrderError {
        let names = self.images.iter().flat_map(|placed| {
            (0..placed.planner.len()).map(|function| placed.planner.name(function))
        });
        OrderError::NoMatch {
            pattern: Printable(&pattern.to_string()).to_string(),
            similar: pattern.almost(names),
        }
    }
}

/// Rejects a pattern that shows nothing of a trace of these functions.
fn check_shown(
    wanted: &Wanted,
    functions: &[OrderedFunction],
    refused: &[(String, String)],
) -> Result<(), OrderError> {
    let names = || functions.iter().map(|it| it.name.as_str());
    let inside = wanted.inside.iter().map(|pattern| ("--in", pattern));
    let shown = wanted.shown.iter().map(|(option, pattern)| (*option, pattern));
    for (option, pattern) in inside.chain(shown) {
        if names().any(|name| pattern.matches(name)) {
            continue;
        }
        let refusal = refused.iter().find(|(name, _)| pattern.matches(name));
        let refusal = refusal.map(|(name, reason)| {
            format!("; `{}` cannot be traced: {}", Printable(name), Printable(reason))
        });
        return Err(OrderError::NotShown {
            option,
            pattern: Printable(&pattern.to_string()).to_string(),
            similar: refusal.unwrap_or_else(|| pattern.almost(names())),
        });
    }
    Ok(())
}

impl Placed<'_> {
    /// A function in the agent's codes; `None` if not all of it is mapped.
    fn place(&self, name: &str, flags: u32, plan: &PlannedFunction) -> Option<OrderedFunction> {
        let parts = plan.parts.iter().map(|part| {
            let length = u32::try_from(part.end - part.start).ok()?;
            Some((self.code(part.start)?, length))
        });
        let probes = plan.probes.iter().map(|probe| {
            Some(OrderedProbe {
                kind: probe.kind,
                code: self.code(probe.address)?,
                displacement: probe.displacement,
                instruction: probe.instruction.clone(),
            })
        });
        Some(OrderedFunction {
            name: name.to_owned(),
            flags,
            parts: parts.collect::<Option<_>>()?,
            probes: probes.collect::<Option<_>>()?,
        })
    }

    /// The code of a link address.
    fn code(&self, linked: u64) -> Option<u32> {
        self.mappings.iter().find_map(|(base, mapping)| {
            let address = self.image.guest_address(mapping, linked)?;
            base.checked_add(u32::try_from(address - mapping.start).ok()?)
        })
    }
}

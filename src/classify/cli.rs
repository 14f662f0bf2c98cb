//! The verb `classify` behind its words.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::stats::Stats;
use super::{Emission, Tier, Verdict, Witness, classify, protocol, reads, render, rewrite};
use crate::proto::{Code, Failure, SCHEMA_VERSION};
use crate::report::quote;

/// The exit code for an emission: a decision is needed. A witnessed text is 0.
pub const EMISSION: u8 = 10;

/// The words of the verb.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("input").required(true).args(["text", "stdin", "stats"])))]
pub struct Args {
    /// How much of the shell's language is known
    #[arg(long, value_enum, default_value_t)]
    pub tier: Tier,
    /// Say where in the text the reason is, what the other tier says, and a rewrite
    #[arg(long)]
    pub explain: bool,
    /// Answer JSON lines ({"text": ...} or {"text_hex": ...}) with JSON lines
    #[arg(long)]
    pub stdin: bool,
    /// Count what the tiers cover of FILE: a command a line, or JSON lines if it ends in .jsonl
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// The text to classify
    pub text: Option<OsString>,
}

/// Runs the verb and says the exit code: 0 witnessed, [`EMISSION`]; for several texts 0 unless a
/// line did not decode, which is 2.
///
/// # Errors
///
/// What cannot be read or written.
pub fn run(args: &Args, json: bool, stdin: impl Read, out: &mut impl Write) -> Result<u8, Failure> {
    // A reader that has seen enough is no error.
    let output = |e: io::Error| {
        let enough = e.kind() == io::ErrorKind::BrokenPipe;
        if enough { Ok(0) } else { Err(io_failure("the output", &e)) }
    };
    match (&args.text, &args.stats) {
        (Some(text), _) => one(text.as_bytes(), args, json, out).or_else(output),
        (None, None) => {
            let all = protocol::serve(stdin, out, args.tier);
            all.map(|all| if all { 0 } else { Code::Usage.exit() }).or_else(output)
        }
        (None, Some(path)) => {
            let name = quote::shown(path.as_os_str().as_bytes());
            let file = File::open(path).map_err(|e| io_failure(&name, &e))?;
            let requests = path.extension().is_some_and(|e| e == "jsonl");
            let (stats, undecoded) = count(file, requests).map_err(|e| io_failure(&name, &e))?;
            let code = if undecoded == 0 { 0 } else { Code::Usage.exit() };
            print_stats(&stats, json, out).map(|()| code).or_else(output)
        }
    }
}

fn io_failure(what: &str, e: &io::Error) -> Failure {
    Failure::new(Code::Io, format!("cannot read or write {what}: {e}"))
}

fn one(text: &[u8], args: &Args, json: bool, out: &mut impl Write) -> io::Result<u8> {
    let verdict = classify(text, args.tier);
    let code = match verdict {
        Verdict::Witnessed(_) => 0,
        Verdict::Emission(_) => EMISSION,
    };
    if json {
        let mut answer = Vec::new();
        protocol::answer(text, args.tier, &mut answer)?;
        let fields: Map<String, Value> = serde_json::from_slice(&answer)?;
        print_json("classify", fields, out)?;
    } else {
        match &verdict {
            Verdict::Witnessed(witness) => print_witness(witness, args, out)?,
            Verdict::Emission(emission) => print_emission(text, *emission, args, out)?,
        }
    }
    out.flush()?;
    Ok(code)
}

fn print_json(kind: &str, fields: Map<String, Value>, out: &mut impl Write) -> io::Result<()> {
    let mut object = Map::new();
    object.insert("schema_version".into(), SCHEMA_VERSION.into());
    object.insert("kind".into(), kind.into());
    object.insert("ok".into(), true.into());
    object.extend(fields);
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}

fn print_witness(witness: &Witness<'_>, args: &Args, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "witnessed ({})", witness.tier.name())?;
    if let Some(dir) = witness.cd {
        writeln!(out, "  in {}", quote::shown(dir))?;
    }
    let mut effects = Vec::new();
    witness.commands.iter().for_each(|c| c.each_effect(|e| effects.push(e)));
    for effect in effects {
        let from = effect.from.map_or(String::new(), |f| format!("{} -> ", quote::shown(f)));
        let below = if effect.recursive { " and all below" } else { "" };
        let (op, inverse) = (effect.op.name(), effect.op.inverse());
        writeln!(out, "  {op} {from}{}{below}, taken back by {inverse}", quote::shown(effect.to))?;
    }
    if args.explain {
        writeln!(out, "  the same as: {}", quote::shown(&render(witness)))?;
    }
    Ok(())
}

fn print_emission(
    text: &[u8],
    emission: Emission,
    args: &Args,
    out: &mut impl Write,
) -> io::Result<()> {
    let Emission { reason, span } = emission;
    writeln!(out, "emission ({}): {}", reason.code(), reason.why())?;
    if !args.explain {
        return Ok(());
    }
    // A span covers whole bytes of the text, and its end may be the text's.
    let part = text.get(span.start..span.end).unwrap_or_default();
    writeln!(out, "  at bytes {} to {}: {}", span.start, span.end, quote::shown(part))?;
    if let Verdict::Witnessed(_) = classify(text, Tier::Exact) {
        writeln!(out, "  witnessed in tier exact")?;
    }
    if reads::reads_only(text) {
        writeln!(out, "  it seems to read only, which is advice and no proof")?;
    }
    if let Some(better) = rewrite(text) {
        writeln!(out, "  in tier exact this is witnessed: {}", quote::shown(&better))?;
    }
    Ok(())
}

/// Counts the texts of a file, and the lines that did not decode.
fn count(file: impl Read, requests: bool) -> io::Result<(Stats, u64)> {
    let mut input = BufReader::new(file);
    let (mut stats, mut line, mut text, mut undecoded) =
        (Stats::default(), Vec::new(), Vec::new(), 0);
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok((stats, undecoded));
        }
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        if !requests {
            stats.add(content);
        } else if protocol::decode(content, &mut text).is_ok() {
            stats.add(&text);
        } else {
            undecoded += 1;
        }
    }
}

fn print_stats(stats: &Stats, json: bool, out: &mut impl Write) -> io::Result<()> {
    if json {
        let Value::Object(fields) = serde_json::to_value(stats)? else {
            return Err(io::Error::other("the counts are no object"));
        };
        print_json("classify_stats", fields, out)?;
    } else {
        out.write_all(stats.table().as_bytes())?;
    }
    out.flush()
}

//! Verdicts as JSON, one object a line.
//!
//! A request is `{"text_hex": "..."}` or `{"text": "..."}`; of both the first counts, since JSON
//! strings cannot hold every byte. Other fields are ignored. Each line gets one line for an answer,
//! in order; a line that does not decode is answered as an emission with the code `bad-request`.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};

use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use super::{Command, Effect, Emission, Tier, Verdict, Witness, classify, reads, rewrite};

/// The version of the answers.
pub const VERSION: u32 = 1;

/// The longest request line that is decoded, in bytes: ten times what the longest text needs.
/// Longer ones are answered as too long without being held in memory.
pub const MAX_LINE: usize = 256 << 10;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    text_hex: Option<Cow<'a, str>>,
}

/// Bytes as pairs of hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(2 * self.0.len());
        for &b in self.0 {
            text.push(char::from(DIGITS[usize::from(b >> 4)]));
            text.push(char::from(DIGITS[usize::from(b & 15)]));
        }
        s.serialize_str(&text)
    }
}

/// Operands in order.
struct Operands<'a>(&'a Command<'a>);

impl Serialize for Operands<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut operands = Vec::new();
        self.0.each_operand(|o| operands.push(o));
        s.collect_seq(operands.into_iter().map(Hex))
    }
}

#[derive(Serialize)]
struct JsonCommand<'a> {
    tool: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    flags: &'static str,
    operands_hex: Operands<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_hex: Option<Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<Hex<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    append: bool,
}

struct Content(Vec<u8>);

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Hex(&self.0).serialize(s)
    }
}

impl<'a> JsonCommand<'a> {
    fn new(command: &'a Command<'a>) -> JsonCommand<'a> {
        let (content_hex, target_hex, append) = match command {
            Command::Write { append, content, to } => {
                (Some(Content(content.bytes())), Some(Hex(to)), *append)
            }
            Command::Mv { .. }
            | Command::Cp { .. }
            | Command::Rm { .. }
            | Command::Rmdir { .. }
            | Command::Mkdir { .. }
            | Command::Touch { .. }
            | Command::Chmod { .. }
            | Command::Symlink { .. } => (None, None, false),
        };
        JsonCommand {
            tool: command.tool(),
            flags: command.flags(),
            operands_hex: Operands(command),
            content_hex,
            target_hex,
            append,
        }
    }
}

#[derive(Serialize)]
struct JsonEffect<'a> {
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_hex: Option<Hex<'a>>,
    to_hex: Hex<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    recursive: bool,
    inverse: &'static str,
}

struct Commands<'a>(&'a Witness<'a>);

impl Serialize for Commands<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.commands.iter().map(JsonCommand::new))
    }
}

struct Effects<'a>(&'a Witness<'a>);

impl Serialize for Effects<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut effects = Vec::new();
        self.0.commands.iter().for_each(|c| c.each_effect(|e| effects.push(e)));
        let mut seq = s.serialize_seq(Some(effects.len()))?;
        for Effect { op, from, to, recursive } in effects {
            seq.serialize_element(&JsonEffect {
                op: op.name(),
                from_hex: from.map(Hex),
                to_hex: Hex(to),
                recursive,
                inverse: op.inverse(),
            })?;
        }
        seq.end()
    }
}

#[derive(Serialize)]
struct JsonReason<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<[usize; 2]>,
    why: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rewrite: Option<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    v: u32,
    verdict: &'static str,
    tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cd_hex: Option<Hex<'a>>,
    /// Of the command, if it is one.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    only: Option<JsonCommand<'a>>,
    /// Of all of them, if they are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    commands: Option<Commands<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effects: Option<Effects<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<JsonReason<'a>>,
    reads_only: bool,
}

/// Appends the answer for a text, without a line break.
///
/// # Errors
///
/// None that a `Vec` has; those of the JSON writer are passed on.
pub fn answer(text: &[u8], tier: Tier, out: &mut Vec<u8>) -> io::Result<()> {
    match classify(text, tier) {
        Verdict::Witnessed(witness) => write(out, &witnessed(&witness)),
        Verdict::Emission(emission) => write(out, &emitted(text, tier, emission)),
    }
}

fn write(out: &mut Vec<u8>, answer: &Answer<'_>) -> io::Result<()> {
    serde_json::to_writer(out, answer).map_err(io::Error::from)
}

fn witnessed<'a>(witness: &'a Witness<'a>) -> Answer<'a> {
    let single = match &witness.commands[..] {
        [command] => Some(JsonCommand::new(command)),
        _ => None,
    };
    Answer {
        v: VERSION,
        verdict: "witnessed",
        tier: witness.tier.name(),
        cd_hex: witness.cd.map(Hex),
        commands: single.is_none().then_some(Commands(witness)),
        only: single,
        effects: Some(Effects(witness)),
        reason: None,
        reads_only: false,
    }
}

fn emitted<'a>(text: &[u8], tier: Tier, emission: Emission) -> Answer<'a> {
    // What is printed here is ASCII: a rewrite is a witnessed text.
    let rewrite = rewrite(text).and_then(|t| String::from_utf8(t).ok());
    let reason = JsonReason {
        code: emission.reason.code(),
        span: Some([emission.span.start, emission.span.end]),
        why: emission.reason.why(),
        rewrite,
    };
    Answer { reason: Some(reason), reads_only: reads::reads_only(text), ..bare_emission(tier) }
}

fn bare_emission<'a>(tier: Tier) -> Answer<'a> {
    Answer {
        v: VERSION,
        verdict: "emission",
        tier: tier.name(),
        cd_hex: None,
        only: None,
        commands: None,
        effects: None,
        reason: None,
        reads_only: false,
    }
}

fn refused<'a>(tier: Tier, code: &'static str, why: &'a str) -> Answer<'a> {
    let reason = JsonReason { code, span: None, why, rewrite: None };
    Answer { reason: Some(reason), ..bare_emission(tier) }
}

/// Appends the answer for a request line, without a line break. Says whether the line decoded.
///
/// # Errors
///
/// As [`answer`].
pub fn answer_line(
    line: &[u8],
    tier: Tier,
    text: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> io::Result<bool> {
    match decode(line, text) {
        Ok(()) => answer(text, tier, out).map(|()| true),
        Err(why) => write(out, &refused(tier, "bad-request", &why)).map(|()| false),
    }
}

pub(super) fn decode(line: &[u8], text: &mut Vec<u8>) -> Result<(), String> {
    text.clear();
    let request: Request<'_> =
        serde_json::from_slice(line).map_err(|e| format!("the line does not decode: {e}"))?;
    match (request.text_hex, request.text) {
        (Some(hex), _) => unhex(hex.as_bytes(), text).ok_or("text_hex needs pairs of digits")?,
        (None, Some(plain)) => text.extend_from_slice(plain.as_bytes()),
        (None, None) => return Err("neither text_hex nor text is there".to_owned()),
    }
    Ok(())
}

fn unhex(hex: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        b'A'..=b'F' => Some(b - b'A' + 10),
        _ => None,
    };
    let (pairs, rest) = hex.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    for &[high, low] in pairs {
        out.push(digit(high)? << 4 | digit(low)?);
    }
    Some(())
}

/// Answers request lines until the input ends. Answers are written out before the input is waited
/// for, so that a caller may ask one by one. Says whether all lines decoded.
///
/// # Errors
///
/// Those of reading and writing.
pub fn serve(input: impl Read, output: &mut impl Write, tier: Tier) -> io::Result<bool> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    let (mut line, mut text, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let mut all = true;
    loop {
        let found = next_line(&mut input, &mut line, || {
            output.write_all(&out)?;
            out.clear();
            output.flush()
        })?;
        match found {
            Line::Whole => all &= answer_line(&line, tier, &mut text, &mut out)?,
            Line::TooLong => {
                all = false;
                write(&mut out, &refused(tier, "too-long", "the request line is too long"))?;
            }
            Line::None => {
                output.write_all(&out)?;
                return output.flush().map(|()| all);
            }
        }
        out.push(b'\n');
    }
}

/// The size of the buffers for input, in bytes; that for output follows it.
const BUFFER: usize = 64 << 10;

enum Line {
    Whole,
    /// It was skipped.
    TooLong,
    /// The input ended.
    None,
}

/// Reads a line without its end into `line`; calls `wait` before it may have to wait.
fn next_line(
    input: &mut BufReader<impl Read>,
    line: &mut Vec<u8>,
    mut wait: impl FnMut() -> io::Result<()>,
) -> io::Result<Line> {
    line.clear();
    let (mut fits, mut any) = (true, false);
    loop {
        if input.buffer().is_empty() {
            wait()?;
        }
        let available = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let end = available.iter().position(|&b| b == b'\n');
        if available.is_empty() || end.is_some() {
            let part = &available[..end.unwrap_or(0)];
            any |= end.is_some();
            fits &= line.len() + part.len() <= MAX_LINE;
            if fits {
                line.extend_from_slice(part);
            }
            input.consume(end.map_or(0, |end| end + 1));
            return Ok(match (any, fits) {
                (false, _) => Line::None,
                (true, true) => Line::Whole,
                (true, false) => Line::TooLong,
            });
        }
        any = true;
        fits &= line.len() + available.len() <= MAX_LINE;
        if fits {
            line.extend_from_slice(available);
        }
        let used = available.len();
        input.consume(used);
    }
}

//! Tools that only read, and with which flags.

use super::Word;

/// Tools that write nothing and run nothing, whatever their flags.
const ALWAYS: &[&[u8]] = &[
    b"[",
    b"arch",
    b"b2sum",
    b"basename",
    b"cat",
    b"cksum",
    b"cmp",
    b"comm",
    b"cut",
    b"df",
    b"diff",
    b"dirname",
    b"du",
    b"echo",
    b"egrep",
    b"expand",
    b"false",
    b"fgrep",
    b"fold",
    b"free",
    b"grep",
    b"head",
    b"hexdump",
    b"id",
    b"join",
    b"jq",
    b"ls",
    b"md5sum",
    b"nl",
    b"nproc",
    b"od",
    b"paste",
    b"printenv",
    b"printf",
    b"ps",
    b"pwd",
    b"readlink",
    b"realpath",
    b"rev",
    b"seq",
    b"sha1sum",
    b"sha256sum",
    b"sha512sum",
    b"stat",
    b"strings",
    b"tac",
    b"tail",
    b"test",
    b"tr",
    b"true",
    b"type",
    b"uname",
    b"uptime",
    b"wc",
    b"which",
    b"whoami",
];

/// Tools for which [`reads_only`] looks at the words.
const SOMETIMES: &[&[u8]] = &[
    b"command",
    b"date",
    b"fd",
    b"file",
    b"find",
    b"hostname",
    b"rg",
    b"sed",
    b"sort",
    b"tree",
    b"uniq",
    b"xxd",
];

pub(super) fn known(name: &[u8]) -> bool {
    ALWAYS.binary_search(&name).is_ok() || SOMETIMES.binary_search(&name).is_ok()
}

pub(super) fn reads_only(name: &[u8], words: &[Word]) -> bool {
    if matches!(name, b"[" | b"test" | b"printf") && !built_in(name, words) {
        return false;
    }
    if ALWAYS.binary_search(&name).is_ok() {
        // diff -l runs pr, which only prints as well.
        return true;
    }
    let none = |bad: &[&[u8]]| !words.iter().any(|w| bad.iter().any(|b| w.bytes.starts_with(b)));
    // The second operand is written to. `-` is one, and so is everything behind `--`.
    let operand = |w: &&Word| w.bytes == b"-" || !w.bytes.starts_with(b"-");
    let one_operand = words.iter().filter(operand).count() <= 1
        && !words.iter().any(|w| w.pattern || w.bytes == b"--");
    match name {
        b"command" => matches!(words, [v, _] if v.bytes == b"-v"),
        b"hostname" => words.is_empty(),
        b"find" => none(&[b"-exec", b"-ok", b"-delete", b"-fprint", b"-fls"]),
        b"fd" => none(&[b"--exec", b"--ex"]) && no_letters(words, b"xX"),
        b"sort" => none(&[b"--o", b"--co", b"--temp", b"--files0"]) && no_letters(words, b"oT"),
        b"rg" => none(&[b"--pre", b"--hostname-bin", b"--search-z"]) && no_letters(words, b"z"),
        b"file" => none(&[b"--c"]) && no_letters(words, b"Cz"),
        b"tree" => none(&[b"--o"]) && no_letters(words, b"oR"),
        b"uniq" => one_operand,
        b"xxd" => one_operand && no_letters(words, b"r"),
        b"date" => !words.iter().any(|w| w.pattern) && date(words),
        b"sed" => sed(words),
        _ => false,
    }
}

/// Whether a shell that has the tool built in does no more than the program. zsh and mksh evaluate
/// what should be a number, and `PATH=1` in it is an assignment; `printf` can be told to assign.
fn built_in(name: &[u8], words: &[Word]) -> bool {
    // A pattern may become a name like `a[$(x)]`.
    if words.iter().any(|w| w.pattern || may_be_evaluated(&w.bytes)) {
        return false;
    }
    if name == b"printf" {
        return words.first().is_some_and(|format| prints_words(&format.bytes));
    }
    let number = |w: &Word| {
        let digits = w.bytes.strip_prefix(b"-").unwrap_or(&w.bytes);
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    };
    let computes = |w: &Word| {
        matches!(&w.bytes[..], b"-eq" | b"-ne" | b"-lt" | b"-le" | b"-gt" | b"-ge" | b"-t")
    };
    let joins = |w: &Word| matches!(&w.bytes[..], b"!" | b"-a" | b"-o" | b"]");
    !words.iter().any(computes) || words.iter().all(|w| number(w) || computes(w) || joins(w))
}

/// Whether a format of `printf` has no conversions but those of words. Some shells look for
/// conversions once they have replaced what a backslash stands for.
fn prints_words(format: &[u8]) -> bool {
    let mut rest = format;
    if rest.starts_with(b"-") {
        return false;
    }
    loop {
        rest = match rest {
            [] => return true,
            [b'%', conversion @ ..] => {
                let flags = |b: &u8| matches!(b, b'-' | b'.' | b'0'..=b'9');
                let at = conversion.iter().position(|b| !flags(b));
                match at.and_then(|at| conversion.get(at..)) {
                    Some([b's' | b'b' | b'%', rest @ ..]) => rest,
                    _ => return false,
                }
            }
            [b'\\', b'n' | b't' | b'r' | b'\\', rest @ ..] => rest,
            [b'\\', ..] => return false,
            [_, rest @ ..] => rest,
        };
    }
}

/// Whether a shell that has the tool built in may run something that the word holds, quoted or not:
/// `[ -v 'a[$(x)]' ]` in bash, `printf %d 'a[$(x)]'` in zsh.
fn may_be_evaluated(word: &[u8]) -> bool {
    word.len() > 1 && word.iter().any(|b| matches!(b, b'$' | b'`' | b'['))
}

/// None of these letters in any cluster of flags. A flag's value that looks like one counts too.
fn no_letters(words: &[Word], letters: &[u8]) -> bool {
    let short = |w: &[u8]| w.first() == Some(&b'-') && w.get(1).is_some_and(|&b| b != b'-');
    !words.iter().any(|w| short(&w.bytes) && w.bytes.iter().any(|b| letters.contains(b)))
}

fn date(words: &[Word]) -> bool {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let known = match &word.bytes[..] {
            b"-u" | b"-R" | b"--utc" => true,
            b"-d" => words.next().is_some(),
            other => [&b"+"[..], b"-I", b"--iso-8601", b"--rfc-3339=", b"--date="]
                .iter()
                .any(|prefix| other.starts_with(prefix)),
        };
        if !known {
            return false;
        }
    }
    true
}

/// `sed -n 'A,Bp'`: sed's language writes files and runs commands, so only printing is known.
fn sed(words: &[Word]) -> bool {
    let [n, script, files @ ..] = words else { return false };
    let script = script.bytes.strip_suffix(b"p").unwrap_or(b"?");
    let address = |a: &[u8]| a == b"$" || (!a.is_empty() && a.iter().all(u8::is_ascii_digit));
    let mut parts = script.splitn(2, |&b| b == b',');
    n.bytes == b"-n" && parts.all(address) && !files.iter().any(|f| f.bytes.starts_with(b"-"))
}

#[cfg(test)]
mod tests {
    use super::{ALWAYS, SOMETIMES};

    #[test]
    fn sorted() {
        assert!(ALWAYS.is_sorted());
        assert!(SOMETIMES.is_sorted());
    }
}

//! The `txfs` command.

fn main() -> std::process::ExitCode {
    txfs::cli::main()
}

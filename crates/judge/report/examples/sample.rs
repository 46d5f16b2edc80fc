//! Writes the sample run in every format: `cargo run -p fathom-report --example sample DIRECTORY`.

use std::{env, fs::File, io, path::PathBuf};

use fathom_report::FORMATS;

#[path = "../tests/sample/mod.rs"]
mod sample;

fn main() -> io::Result<()> {
    let directory = PathBuf::from(env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let single = sample::run_of("tcp_stream");
    let all = [
        ("sample", &sample::run()),
        ("single", &single),
        ("searched", &sample::searched()),
        ("benchmarked", &sample::benchmarked()),
        ("scripted", &sample::scripted()),
        ("with_script", &sample::with_script()),
    ];
    for (name, run) in all {
        for format in FORMATS {
            let path = directory.join(format!("{name}.{}", format.extension()));
            format.write(run, &mut File::create(path)?)?;
        }
    }
    Ok(())
}

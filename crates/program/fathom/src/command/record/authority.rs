//! `fathom record ca`: the certificate that a browser has to trust, where it is and how it is trusted.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_record::{CertificateAuthority, CertificateError};
use fathom_run::{
    exit::{Exit, UserError},
    files::{self, FileReaders},
};
use jiff::Timestamp;

use crate::command::scenario_files::write_text;

/// A key and a certificate are far shorter.
const FILE_BYTES_MAX: u64 = 64 << 10;

pub(super) fn define(command: Command) -> Command {
    command.arg(
        Arg::new("renew")
            .long("renew")
            .action(ArgAction::SetTrue)
            .help("make a new one; browsers that trust the old one have to be told again"),
    )
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let kept = KeptAuthority::find()?;
    let authority = if matches.get_flag("renew") { kept.make()? } else { kept.load()? };
    let mut out = io::stdout().lock();
    out.write_all(description(&authority, &kept.certificate.display().to_string()).as_bytes())?;
    Ok(Exit::Pass)
}

/// The files of the authority in the user's settings.
pub(super) struct KeptAuthority {
    /// The key and the certificate, for the owner alone.
    secret: PathBuf,
    /// The certificate, which is no secret.
    pub(super) certificate: PathBuf,
}

impl KeptAuthority {
    pub(super) fn find() -> anyhow::Result<Self> {
        let folder = files::config_folder();
        let folder =
            folder.context("the place of the certificate is unknown: neither HOME nor XDG_CONFIG_HOME is set")?;
        Ok(Self { secret: folder.join("record-ca.key"), certificate: folder.join("record-ca.pem") })
    }

    /// Reads the authority, or makes one the first time.
    pub(super) fn load(&self) -> anyhow::Result<CertificateAuthority> {
        if fs::symlink_metadata(&self.secret).is_err() {
            return self.make();
        }
        let text = files::read_text(&self.secret, FILE_BYTES_MAX)?;
        let authority = CertificateAuthority::from_secret_text(&text, Timestamp::now()).map_err(|error| {
            authority_error(&error)
                .with_line("in", self.secret.display().to_string())
                .with_line("fix", "fathom record ca --renew        # then trust the new one")
        })?;
        self.write_certificate(&authority)?;
        Ok(authority)
    }

    fn make(&self) -> anyhow::Result<CertificateAuthority> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let user = variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "somebody".to_owned());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let owner = format!("{user}@{}", host.trim());
        let made = CertificateAuthority::generate(&owner, Timestamp::now()).map_err(|error| authority_error(&error))?;
        let folder = self.secret.parent().expect("the path was made from a folder");
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        write_text(&self.secret, FileReaders::Owner, made.to_secret_text())?;
        self.write_certificate(&made)?;
        Ok(made)
    }

    fn write_certificate(&self, authority: &CertificateAuthority) -> anyhow::Result<()> {
        let text = authority.certificate_pem();
        let is_there = files::read_text(&self.certificate, FILE_BYTES_MAX).is_ok_and(|kept| kept == text);
        if !is_there {
            write_text(&self.certificate, FileReaders::Anyone, &text)?;
        }
        Ok(())
    }
}

fn authority_error(error: &CertificateError) -> UserError {
    UserError::new(Exit::Preflight, "the certificate authority of the recorder cannot be used").with_causes(error)
}

/// What it is, and how each client is made to trust it.
fn description(authority: &CertificateAuthority, file: &str) -> String {
    format!(
        "\
certificate  {file}
subject      {}
valid until  {}
SHA-256      {}

Its key is beside it and readable for you alone. Who has the key can read the traffic of everybody who trusts the
certificate: trust it in a profile that is used for recording alone, and end the trust when you are done.

curl         curl --proxy http://127.0.0.1:8888 --cacert {file} https://shop.test/
Chromium     without changing anything that lasts, in a profile of its own:
             chromium --user-data-dir=/tmp/fathom-record --proxy-server=http://127.0.0.1:8888 \\
               '--proxy-bypass-list=<-loopback>' --ignore-certificate-errors-spki-list={}
             or in the user's store: certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n fathom-record -i {file}
Firefox      Settings, Privacy & Security, View Certificates, Authorities, Import. For servers on this machine also
             set network.proxy.allow_hijacking_localhost in about:config
system       Debian: sudo cp {file} /usr/local/share/ca-certificates/fathom-record.crt && sudo update-ca-certificates
             Fedora: sudo cp {file} /etc/pki/ca-trust/source/anchors/ && sudo update-ca-trust
programs     Python: REQUESTS_CA_BUNDLE={file}    Node: NODE_EXTRA_CA_CERTS={file}
phones       open http://ADDRESS:PORT/ca.crt of the recorder
",
        authority.subject(),
        authority.end(),
        authority.fingerprint(),
        authority.key_digest(),
    )
}

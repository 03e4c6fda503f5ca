//! Where a new cluster's manager has its journal.

use std::path::PathBuf;

use base::ByteSize;
use clap::{Args, ValueHint};
use manager::store::Place;

#[derive(Args, Default)]
pub struct StoreArgs {
    /// Where the manager's journal is: etcd://HOST:PORT,HOST:PORT/PREFIX, or etcds:// for TLS [default: a file beside its
    /// table, on one disk]
    #[arg(long, value_name = "PLACE")]
    pub store: Option<Place>,
    /// The name by which etcd knows the manager
    #[arg(long, value_name = "NAME", requires_all = ["store", "etcd_password"])]
    pub etcd_user: Option<String>,
    /// A file whose first line is the password for it
    #[arg(long, value_name = "FILE", requires = "etcd_user", value_hint = ValueHint::FilePath)]
    pub etcd_password: Option<PathBuf>,
    /// TLS: the certificate of the authority that etcd's are of, PEM
    #[arg(long, value_name = "FILE", requires = "store", value_hint = ValueHint::FilePath)]
    pub etcd_ca: Option<PathBuf>,
    /// TLS: the manager's certificate, PEM
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"], value_hint = ValueHint::FilePath)]
    pub etcd_cert: Option<PathBuf>,
    /// TLS: its key, PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert", value_hint = ValueHint::FilePath)]
    pub etcd_key: Option<PathBuf>,
    /// What etcd has as --quota-backend-bytes, unless it is its default, 2g, or etcd is 3.6 or later, which says so itself
    #[arg(long, value_name = "SIZE", requires = "store")]
    pub etcd_quota: Option<ByteSize>,
}

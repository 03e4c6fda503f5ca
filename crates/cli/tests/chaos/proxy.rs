//! A network between the last mount and everybody else. The mount lives in a network namespace of its own, in which every
//! address of the cluster is a socket of ours; what comes there goes on, from outside, to the same address. So
//! nobody is told of the proxy, and no address is changed.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;

use super::plan::Kind;
use crate::common::Random;

#[derive(Default)]
struct State {
    /// What is done to the bytes, and where the choices start.
    spoil: Mutex<Option<(Kind, u64)>>,
    /// Grows with every change: a connection looks when it differs.
    change: AtomicU64,
    stop: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

type Job = Box<dyn FnOnce() + Send>;

/// The namespace, and the proxy at its border.
pub struct Proxy {
    state: Arc<State>,
    inside: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// For these addresses. `None`: this machine gives us no namespace.
    pub fn start(addrs: &[SocketAddr]) -> Option<Proxy> {
        let (inside, jobs) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        let listened = addrs.to_vec();
        let state = Arc::new(State::default());
        let mut threads = vec![std::thread::spawn(move || {
            // SAFETY: it concerns this thread only, which does nothing else than its jobs.
            let apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            let up = apart
                && Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|s| s.success());
            let sockets =
                up.then(|| listened.iter().map(TcpListener::bind).collect::<Result<Vec<_>, _>>().ok());
            let _ = ready.send(sockets.flatten());
            jobs.iter().for_each(|job| job());
        })];
        let Some(sockets) = made.recv().ok().flatten() else {
            println!("no network namespace is to be had: the network's faults do nothing");
            return None;
        };
        for (socket, addr) in sockets.into_iter().zip(addrs.iter().copied()) {
            let state = state.clone();
            socket.set_nonblocking(true).unwrap();
            threads.push(std::thread::spawn(move || accept(&socket, addr, &state)));
        }
        Some(Proxy { state, inside: Some(inside), threads })
    }

    /// Runs a command inside, to its end.
    pub fn run(&self, mut command: Command) -> std::io::Result<std::process::Output> {
        let (done, wait) = mpsc::channel();
        let job = Box::new(move || drop(done.send(command.output())));
        self.inside.as_ref().map(|inside| inside.send(job));
        wait.recv().map_err(std::io::Error::other)?
    }

    /// From now on.
    pub fn spoil(&self, kind: Kind, seed: u64) {
        *self.state.spoil.lock() = Some((kind, seed));
        self.state.change.fetch_add(1, SeqCst);
        if kind == Kind::NetCut {
            self.cut();
        }
    }

    pub fn heal(&self) {
        *self.state.spoil.lock() = None;
        self.state.change.fetch_add(1, SeqCst);
    }

    fn cut(&self) {
        for stream in self.state.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stop.store(true, SeqCst);
        self.cut();
        self.inside = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn accept(socket: &TcpListener, addr: SocketAddr, state: &Arc<State>) {
    while !state.stop.load(SeqCst) {
        let Ok((near, _)) = socket.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let refuse = matches!(*state.spoil.lock(), Some((Kind::NetCut, _)));
        let far = TcpStream::connect_timeout(&addr, Duration::from_secs(1));
        let (false, Ok(far)) = (refuse, far) else {
            continue; // closed at once
        };
        let _ = (near.set_nonblocking(false), near.set_nodelay(true), far.set_nodelay(true));
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            let state = state.clone();
            std::thread::spawn(move || pass_on(from, to, &state));
        }
        let mut open = state.open.lock();
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend([near, far]);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut bytes = vec![0; 128 << 10];
    let (mut seen, mut spoil, mut random) = (u64::MAX, None, Random(0));
    while let Ok(n) = from.read(&mut bytes) {
        if n == 0 {
            break;
        }
        let change = state.change.load(SeqCst);
        if change != seen {
            (seen, spoil) = (change, *state.spoil.lock());
            random = Random(spoil.map_or(0, |(_, seed)| seed));
        }
        match spoil {
            Some((Kind::NetDelay, _)) => std::thread::sleep(Duration::from_millis(random.below(150))),
            Some((Kind::NetFlip, _)) if random.below(40) == 0 => {
                let at = random.below(n as u64) as usize;
                match random.below(2) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    _ => bytes[..n].rotate_left(at), // the wrong order
                }
            }
            _ => {}
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

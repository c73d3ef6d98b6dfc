//! The real binary, killed at random moments under load: nothing acknowledged is lost, nothing is done that nobody asked for, nothing is done twice
//! but where a lease ran out, and every log is a life that the states allow.
//!
//! `KILL_ROUNDS` = kills (30 in `./test`), `KILL_SEED` = chance, `KILL_REPORT` = file that the figures are written to. The checker is the
//! total-queue checker of Jepsen with receipts: lost = acknowledged − ended; unexpected = ended − attempted. It holds because the run drains at its end.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod agents;
mod check;
mod clients;
mod server;

use check::Figures;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A small generator of chance: the same seed is the same run, as far as the machine allows.
#[derive(Clone)]
pub struct Chance(u64);

impl Chance {
    /// By a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }
}

fn var(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|t| t.parse().ok()).unwrap_or(otherwise)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_nothing_is_lost() {
    let (rounds, seed) = (var("KILL_ROUNDS", 30), var("KILL_SEED", 1));
    let data = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut server = server::Server::new(data.path());
    server.start().await;
    let durability = server.durability().await;
    assert_eq!(durability, "journal_mode=wal synchronous=2", "the shipped durability is in force: every commit is synced");

    let world = Arc::new(clients::World::default());
    let agents = agents::start(&server, world.clone(), seed).await;
    let clients = clients::start(&server, world.clone(), seed, 4);
    let mut chance = Chance::new(seed);
    let mut starts = Vec::new();
    for _ in 0..rounds {
        tokio::time::sleep(Duration::from_millis(5 + chance.below(496))).await;
        server.kill();
        let at = Instant::now();
        server.start().await;
        starts.push(at.elapsed());
    }
    world.stop();
    for client in clients {
        client.await.unwrap();
    }
    server.drained(Duration::from_secs(120)).await;
    agents.iter().for_each(tokio::task::JoinHandle::abort);
    let figures = check::check(&server, &world).await;
    starts.sort_unstable();
    let median = starts.get(starts.len() / 2).copied().unwrap_or_default();
    report(&figures, rounds, seed, &durability, began.elapsed(), median);
    server.kill();
    assert!(figures.acknowledged > rounds, "there was load: {figures:?}");
    assert!(figures.faults.is_empty(), "{:#?}", &figures.faults[..figures.faults.len().min(20)]);
    assert_eq!((figures.lost, figures.unexpected, figures.twice_without_reason), (0, 0, 0), "{figures:?}");
}

fn report(f: &Figures, rounds: u64, seed: u64, durability: &str, took: Duration, start: Duration) {
    let text = format!(
        "kills {rounds} · seed {seed} · {durability} · {:.0} s · restart {:.0} ms (median)\n\
         attempted {} · acknowledged {} · unanswered but stored {} · ended {}\n\
         lost {} · unexpected {} · more than one terminal state {} · receipts out of order {}\n\
         done {} · dead letters {} · failed {} · others {}\n\
         deliveries {} · leases expired {} (by our own crash {}) · done twice {} (without a lease that ran out: {})\n",
        took.as_secs_f64(),
        start.as_secs_f64() * 1e3,
        f.attempted,
        f.acknowledged,
        f.recovered,
        f.ended,
        f.lost,
        f.unexpected,
        f.terminal_twice,
        f.receipts_wrong,
        f.done,
        f.dead,
        f.failed,
        f.others,
        f.deliveries,
        f.expired,
        f.crashed,
        f.twice,
        f.twice_without_reason,
    );
    println!("{text}");
    if let Ok(file) = std::env::var("KILL_REPORT") {
        std::fs::File::create(file).and_then(|mut f| std::io::Write::write_all(&mut f, text.as_bytes())).unwrap();
    }
}

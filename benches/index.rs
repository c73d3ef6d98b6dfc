//! Cost of the index at 1,000 capabilities (and 10,000 for the scans): searches of both arms, evidence, names, one registration.
//!
//! Vectors are random but lie in clusters; texts are recombined from a small vocabulary. Run: `cargo bench --bench index`.

use agent_reach::index::Visible;
use agent_reach::index::dense::{DenseConfig, DenseDoc, DenseIndex, Role};
use agent_reach::index::keyword::{Analyzed, Field, LexConfig, LexDoc, LexIndex, LexQuery};
use agent_reach::index::names::{NameDoc, NameIndex};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;

/// xorshift: the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn normal(&mut self) -> f32 {
        (0..4).map(|_| (self.next() % 65_537) as f32 / 65_537.0 - 0.5).sum()
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.next() as usize % words.len()]
    }
}

fn vectors(dice: &mut Dice, n: usize, dim: usize) -> Vec<Arc<[f32]>> {
    let common: Vec<f32> = (0..dim).map(|_| dice.normal()).collect();
    let centres: Vec<Vec<f32>> = (0..50).map(|_| common.iter().map(|c| c + dice.normal()).collect()).collect();
    (0..n)
        .map(|_| {
            let centre = &centres[dice.next() as usize % centres.len()];
            let raw: Vec<f32> = centre.iter().map(|c| c + 0.7 * dice.normal()).collect();
            let norm = raw.iter().map(|v| v * v).sum::<f32>().sqrt();
            raw.into_iter().map(|v| v / norm).collect()
        })
        .collect()
}

fn dense(c: &mut Criterion) {
    let dim = 512;
    let mut dice = Dice(88_172_645_463_325_252);
    for n in [1_000u32, 10_000] {
        let all = vectors(&mut dice, 3 * n as usize, dim);
        let role = |i: usize| if i == 0 { Role::Both } else { Role::Example };
        let doc = |slot: u32| {
            let own = all.iter().skip(3 * slot as usize).take(3).enumerate();
            DenseDoc { slot, class: slot % 8, vectors: own.map(|(i, v)| (role(i), Arc::clone(v))).collect() }
        };
        let mut index = DenseIndex::new(dim, DenseConfig::default());
        let snapshot = index.apply(&[], (0..n).map(doc).collect());
        let query = vectors(&mut dice, 1, dim).remove(0);
        c.bench_function(&format!("dense/{n}x3/all"), |b| b.iter(|| snapshot.search(black_box(&query), &Visible::All, 32, &mut |_| true)));
        let one = Visible::of([3]);
        c.bench_function(&format!("dense/{n}x3/one class of eight"), |b| {
            b.iter(|| snapshot.search(black_box(&query), &one, 32, &mut |_| true))
        });
        c.bench_function(&format!("dense/{n}x3/half gated"), |b| {
            b.iter(|| snapshot.search(black_box(&query), &Visible::All, 32, &mut |slot| slot % 2 == 0));
        });
        let mut slot = n;
        c.bench_function(&format!("dense/{n}x3/register one"), |b| {
            b.iter(|| {
                slot += 1;
                index.apply(&[slot - 100], vec![DenseDoc { slot, ..doc(slot % n) }])
            });
        });
    }
}

const VERBS: [&str; 12] = ["create", "list", "search", "delete", "update", "export", "查询", "创建", "取消", "导出", "翻译", "check"];
const NOUNS: [&str; 20] = [
    "order", "refund", "invoice", "report", "ticket", "calendar", "customer", "stock", "alert", "contract", "订单", "退款", "发票", "报表",
    "工单", "日程", "库存", "合同", "物流", "weather",
];
const REST: [&str; 24] = [
    "the",
    "of a",
    "for",
    "with",
    "status",
    "amount",
    "by number",
    "in the system",
    "and returns",
    "details",
    "customer",
    "history",
    "的",
    "状态",
    "金额",
    "按编号",
    "系统",
    "并返回",
    "详情",
    "客户",
    "历史",
    "支持",
    "批量",
    "到指定邮箱",
];

fn words(c: &mut Criterion) {
    let mut dice = Dice(42);
    let n = 1_000u32;
    let (mut texts, mut names) = (Vec::new(), Vec::new());
    for slot in 0..n {
        let name = format!("{}_{}_{}", dice.pick(&VERBS), dice.pick(&NOUNS), slot % 97);
        let description =
            (0..18).map(|_| if dice.next().is_multiple_of(3) { dice.pick(&NOUNS) } else { dice.pick(&REST) }).collect::<Vec<_>>().join(" ");
        names.push(NameDoc { slot, class: slot % 8, name: name.clone(), aliases: Vec::new() });
        texts.push(LexDoc { slot, class: slot % 8, fields: vec![(Field::Name, name), (Field::Description, description)] });
    }
    let mut index = LexIndex::new(LexConfig::default());
    let snapshot = index.apply(&[], texts.clone());
    let table = NameIndex::new().apply(&[], names);
    let text = "请帮我 check 一下 create_order_17 的 refund 状态, 并导出这个客户的历史报表 to my mailbox";
    let query = LexQuery::new(text);
    c.bench_function("keyword/1000/analyse query", |b| b.iter(|| LexQuery::new(black_box(text))));
    c.bench_function("keyword/1000/bind and search", |b| {
        b.iter(|| snapshot.bind(black_box(&query), &Visible::All).search(32, &mut |_| true))
    });
    let bound = snapshot.bind(&query, &Visible::All);
    let hits = bound.search(32, &mut |_| true);
    c.bench_function("keyword/1000/evidence of 32", |b| {
        b.iter(|| hits.iter().filter_map(|hit| bound.evidence(black_box(hit.slot))).count())
    });
    c.bench_function("names/1000/find in text", |b| b.iter(|| table.find_in_text(black_box(text), &Visible::All, &snapshot)));
    c.bench_function("keyword/1000/analyse document", |b| b.iter(|| Analyzed::new(black_box(&texts[7]))));
    let mut slot = n;
    c.bench_function("keyword/1000/register one", |b| {
        b.iter(|| {
            slot += 1;
            index.apply(&[slot - 100], vec![LexDoc { slot, ..texts[slot as usize % texts.len()].clone() }])
        });
    });
}

criterion_group!(benches, dense, words);
criterion_main!(benches);

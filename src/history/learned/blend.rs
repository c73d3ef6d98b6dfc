//! Puts what was learned beside what the words and vectors say, by evidence.
//!
//! Every capability with evidence gives the share `e = n / (n + 2)` of its zero-shot probability into a pot, and the pot is dealt out among the
//! same capabilities by the head. So a capability without outcomes keeps exactly its zero-shot probability, whatever others learned; with many
//! outcomes the head decides; and forged outcomes can only win from capabilities that have outcomes, too. Pure.

/// Labelled texts at which half of a capability's probability comes from the head.
const HALF: f32 = 2.0;
/// Largest change of a score, in logits.
pub const MOST: f32 = 8.0;

/// Evidence of a capability from the number of its labelled texts, 0..1.
pub fn evidence(count: f32) -> f32 {
    let n = count.max(0.0);
    n / (n + HALF)
}

/// Changes of scores (logits, within ±[`MOST`]). `zero_shot` = probabilities of distinct capabilities; `evidence` = theirs; `learned` = scores of
/// the head, read where evidence is above 0.
pub fn changes(zero_shot: &[f32], evidence: &[f32], learned: &[f32]) -> Vec<f32> {
    let pot: f32 = zero_shot.iter().zip(evidence).map(|(p, e)| p * e).sum();
    let most = learned.iter().zip(evidence).filter(|(_, e)| **e > 0.0).map(|(s, _)| *s).fold(f32::MIN, f32::max);
    if pot <= 0.0 || most == f32::MIN {
        return vec![0.0; zero_shot.len()];
    }
    let raised: Vec<f32> = learned.iter().zip(evidence).map(|(s, e)| if *e > 0.0 { e * (s - most).exp() } else { 0.0 }).collect();
    let sum: f32 = raised.iter().sum::<f32>().max(1e-20);
    let one = |((p, e), r): ((&f32, &f32), &f32)| {
        if *e <= 0.0 {
            return 0.0;
        }
        let after = (1.0 - e) * p + pot * r / sum;
        (after.max(1e-12) / p.max(1e-12)).ln().clamp(-MOST, MOST)
    };
    zero_shot.iter().zip(evidence).zip(&raised).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(p: &[f32], change: &[f32]) -> Vec<f32> {
        p.iter().zip(change).map(|(p, c)| p * c.exp()).collect()
    }

    #[test]
    fn nothing_changes_without_evidence() {
        assert_eq!(changes(&[0.7, 0.3], &[0.0, 0.0], &[5.0, -5.0]), [0.0, 0.0]);
        assert!(changes(&[], &[], &[]).is_empty());
    }

    #[test]
    fn who_has_no_outcomes_keeps_its_probability() {
        let p = [0.4, 0.35, 0.25];
        let change = changes(&p, &[0.0, 0.9, 0.9], &[0.0, -3.0, 3.0]);
        assert_eq!(change[0], 0.0);
        let q = after(&p, &change);
        assert!((q.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{q:?}");
        assert!(q[2] > 0.5 && q[1] < 0.06);
    }

    #[test]
    fn changes_are_bounded() {
        let change = changes(&[1.0, 1e-9], &[0.99, 0.99], &[-50.0, 50.0]);
        assert!(change.iter().all(|c| c.abs() <= MOST), "{change:?}");
    }

    #[test]
    fn a_thousand_outcomes_are_hardly_more_than_a_hundred() {
        assert!(evidence(1000.0) - evidence(100.0) < 0.02);
        assert!(evidence(0.0) == 0.0 && evidence(2.0) == 0.5);
    }
}

//! Multinomial logistic regression with an L2 penalty, fitted by limited-memory BFGS on dense rows.
//!
//! In: rows, a class and a weight a row. Out: one weight vector a class. Deterministic: the same rows in the same order give the same bits.
//! No constant a class: how often a class was asked for is no evidence of what a text means.
//! Cost: two products of rows × width × classes an evaluation; 10⁴ rows of 900 numbers and 150 classes take seconds on one core.
//! Not here: what the rows are (`sketch`, `head`).

use crate::kernel::Kernel;
use crate::kernel::sgemm::View;

/// Rows that are multiplied at once.
const BLOCK: usize = 128;
/// Steps that the curvature is remembered of.
const MEMORY: usize = 4;

/// What is fitted.
pub struct Data<'a> {
    /// Rows, one after another, `width` numbers each.
    pub rows: &'a [f32],
    /// Numbers of a row.
    pub width: usize,
    /// Class of each row.
    pub class: &'a [u32],
    /// Weight of each row; 0 leaves it out.
    pub weight: &'a [f32],
    /// Number of classes.
    pub classes: usize,
}

/// How it is fitted.
pub struct Fit<'a> {
    /// Weight of the penalty ½·Σw².
    pub l2: f32,
    /// Most steps.
    pub steps: usize,
    /// Called now and then, so that a fit in the background can leave the core to others; `false` ends it, and what it answers is worth nothing.
    pub pause: &'a (dyn Fn() -> bool + Sync),
}

struct Work {
    scores: Vec<f32>,
    turned: Vec<f32>,
    part: Vec<f32>,
}

impl Data<'_> {
    /// Loss at `weights` (width × classes) and, in `gradient`, its slope.
    fn loss(&self, weights: &[f32], gradient: &mut [f32], fit: &Fit<'_>, work: &mut Work) -> f64 {
        let (width, classes) = (self.width, self.classes);
        let kernel = Kernel::best();
        let mut loss = 0.5 * f64::from(fit.l2) * dot(weights, weights);
        gradient.iter_mut().zip(weights).for_each(|(g, w)| *g = fit.l2 * w);
        for first in (0..self.class.len()).step_by(BLOCK) {
            let n = BLOCK.min(self.class.len() - first);
            let weight = &self.weight[first..first + n];
            if weight.iter().all(|w| *w == 0.0) {
                continue;
            }
            let rows = View { data: &self.rows[first * width..(first + n) * width], stride: width };
            kernel.matmul(rows, View { data: weights, stride: classes }, &mut work.scores, classes, n, classes, width);
            for ((scores, class), weight) in work.scores.chunks_exact_mut(classes).zip(&self.class[first..first + n]).zip(weight) {
                let most = scores.iter().copied().fold(f32::MIN, f32::max);
                let right = scores[*class as usize] - most;
                let mut sum = 0.0f32;
                for s in scores.iter_mut() {
                    *s = (*s - most).exp();
                    sum += *s;
                }
                loss += f64::from(*weight) * f64::from(sum.ln() - right);
                let scale = weight / sum;
                scores.iter_mut().for_each(|s| *s *= scale);
                scores[*class as usize] -= weight;
            }
            kernel.transpose(rows, n, width, &mut work.turned, BLOCK);
            let (left, right) = (View { data: &work.turned, stride: BLOCK }, View { data: &work.scores, stride: classes });
            kernel.matmul(left, right, &mut work.part, classes, width, classes, n);
            gradient.iter_mut().zip(&work.part).for_each(|(g, p)| *g += p);
            if !(fit.pause)() {
                // nothing is better than that: the fit ends where it is
                return f64::NAN;
            }
        }
        loss
    }

    /// Weights, class by class: `classes` vectors of `width` numbers.
    pub fn fit(&self, fit: &Fit<'_>) -> Vec<f32> {
        let n = self.width * self.classes;
        if n == 0 || self.class.is_empty() {
            return vec![0.0; n];
        }
        let mut work = Work { scores: vec![0.0; BLOCK * self.classes], turned: vec![0.0; self.width * BLOCK], part: vec![0.0; n] };
        let (mut at, mut slope, mut next, mut next_slope) = (vec![0.0f32; n], vec![0.0f32; n], vec![0.0f32; n], vec![0.0f32; n]);
        let mut loss = self.loss(&at, &mut slope, fit, &mut work);
        // (step, change of slope, 1 / their product)
        let mut memory: Vec<(Vec<f32>, Vec<f32>, f64)> = Vec::with_capacity(MEMORY + 1);
        for _ in 0..fit.steps {
            let mut way: Vec<f32> = slope.iter().map(|g| -g).collect();
            let mut parts = Vec::with_capacity(memory.len());
            for (step, change, inverse) in memory.iter().rev() {
                let a = inverse * dot(step, &way);
                add(&mut way, change, -a);
                parts.push(a);
            }
            match memory.last() {
                Some((_, change, inverse)) => scale(&mut way, 1.0 / (inverse * dot(change, change)).max(1e-12)),
                None => scale(&mut way, 1.0 / dot(&slope, &slope).sqrt().max(1e-12)),
            }
            for ((step, change, inverse), a) in memory.iter().zip(parts.iter().rev()) {
                let b = inverse * dot(change, &way);
                add(&mut way, step, a - b);
            }
            let down = dot(&slope, &way);
            if down > -1e-9 {
                break;
            }
            let (mut length, mut found) = (1.0f64, None);
            for _ in 0..12 {
                next.iter_mut().zip(&at).zip(&way).for_each(|((n, a), w)| *n = a + (length as f32) * w);
                let there = self.loss(&next, &mut next_slope, fit, &mut work);
                if there <= loss + 1e-4 * length * down {
                    found = Some(there);
                    break;
                }
                length *= 0.5;
            }
            let Some(there) = found else { break };
            let step: Vec<f32> = next.iter().zip(&at).map(|(n, a)| n - a).collect();
            let change: Vec<f32> = next_slope.iter().zip(&slope).map(|(n, a)| n - a).collect();
            let product = dot(&step, &change);
            std::mem::swap(&mut at, &mut next);
            std::mem::swap(&mut slope, &mut next_slope);
            let gain = loss - there;
            loss = there;
            if product > 1e-10 {
                memory.push((step, change, 1.0 / product));
                if memory.len() > MEMORY {
                    memory.remove(0);
                }
            }
            if gain < 1e-5 * (1.0 + loss.abs()) {
                break;
            }
        }
        let mut by_class = vec![0.0f32; n];
        for (i, row) in at.chunks_exact(self.classes).enumerate() {
            for (c, w) in row.iter().enumerate() {
                by_class[c * self.width + i] = *w;
            }
        }
        by_class
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    // in pieces: the sum of a piece is exact enough in f32, the sum of the pieces is not
    a.chunks(4096).zip(b.chunks(4096)).map(|(a, b)| f64::from(crate::kernel::dot::dot_f32(a, b))).sum()
}

fn add(to: &mut [f32], what: &[f32], times: f64) {
    to.iter_mut().zip(what).for_each(|(t, w)| *t += (times as f32) * w);
}

fn scale(v: &mut [f32], by: f64) {
    v.iter_mut().for_each(|x| *x *= by as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toy() -> (Vec<f32>, Vec<u32>) {
        // three classes along three axes, with some of the others mixed in
        let (mut rows, mut class) = (Vec::new(), Vec::new());
        for i in 0..30usize {
            let c = i % 3;
            let mut row = [0.1f32 * (i % 5) as f32, 0.05 * (i % 7) as f32, 0.2, 1.0];
            row[c] += 1.0;
            rows.extend(row);
            class.push(c as u32);
        }
        (rows, class)
    }

    #[test]
    fn it_separates_and_repeats_itself() {
        let (rows, class) = toy();
        let weight = vec![1.0; class.len()];
        let data = Data { rows: &rows, width: 4, class: &class, weight: &weight, classes: 3 };
        let fit = Fit { l2: 0.1, steps: 30, pause: &|| true };
        let w = data.fit(&fit);
        for (row, class) in rows.chunks_exact(4).zip(&class) {
            let score = |c: usize| row.iter().zip(&w[c * 4..]).map(|(a, b)| a * b).sum::<f32>();
            let best = (0..3).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
            assert_eq!(best as u32, *class);
        }
        assert_eq!(w, data.fit(&fit), "the same bits");
    }

    #[test]
    fn the_slope_is_the_slope() {
        let (rows, class) = toy();
        let weight: Vec<f32> = (0..class.len()).map(|i| 0.5 + (i % 3) as f32).collect();
        let data = Data { rows: &rows, width: 4, class: &class, weight: &weight, classes: 3 };
        let fit = Fit { l2: 0.3, steps: 0, pause: &|| true };
        let mut work = Work { scores: vec![0.0; BLOCK * 3], turned: vec![0.0; 4 * BLOCK], part: vec![0.0; 12] };
        let at: Vec<f32> = (0..12).map(|i| 0.1 * i as f32 - 0.5).collect();
        let mut slope = vec![0.0; 12];
        let here = data.loss(&at, &mut slope, &fit, &mut work);
        for i in 0..12 {
            let mut near = at.clone();
            near[i] += 1e-2;
            let there = data.loss(&near, &mut [0.0; 12], &fit, &mut work);
            assert!(((there - here) / 1e-2 - f64::from(slope[i])).abs() < 0.15, "{i}: {} {}", (there - here) / 1e-2, slope[i]);
        }
    }

    #[test]
    fn rows_of_weight_zero_do_not_count() {
        let (rows, class) = toy();
        let some: Vec<f32> = (0..class.len()).map(|i| f32::from(u8::from(i < 15))).collect();
        let fit = Fit { l2: 0.1, steps: 20, pause: &|| true };
        let all = Data { rows: &rows, width: 4, class: &class, weight: &some, classes: 3 }.fit(&fit);
        let half = Data { rows: &rows[..60], width: 4, class: &class[..15], weight: &some[..15], classes: 3 }.fit(&fit);
        assert!(all.iter().zip(&half).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}

//! Turns an ONNX fp32 export of a BERT encoder into tensors under the names that BERT checkpoints use.
//!
//! In: the bytes of one `.onnx` file. Out: every tensor of the encoder (f32, shapes checked) and the configuration that the graph shows.
//! How: biases, norms and embedding tables keep their names in an export; the weights of linear layers are anonymous and transposed, but the `Add`
//! behind each `MatMul` reads the bias of the same layer, and so names its owner.
//! Invariant: either the whole encoder is there, or an error names what is missing. Quantised and split files are refused.
//! Cost: one pass over the weights. Not here: checksums and files (`fetch`, `cache`).

pub mod proto;

use prost::Message;
use prost::bytes::Bytes;
use proto::{Graph, Model, Node, Tensor};
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// A tensor of f32, as little-endian bytes.
#[derive(Clone)]
pub struct RawTensor {
    /// Shape.
    pub shape: Vec<usize>,
    /// Values, row-major, little-endian.
    pub data: Bytes,
}

impl safetensors::View for RawTensor {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }
    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// An encoder taken out of an ONNX file.
pub struct Imported {
    /// Content of the `config.json` that goes with the tensors.
    pub config: serde_json::Value,
    /// Tensors by BERT name.
    pub tensors: BTreeMap<String, RawTensor>,
}

/// Reads a BERT encoder out of an ONNX file. The error says what was not as expected.
pub fn import(file: Bytes) -> Result<Imported, String> {
    let model = Model::decode(file).map_err(|e| format!("not an ONNX file: {e}"))?;
    let graph = model.graph.ok_or("the ONNX file has no graph")?;
    if graph.node.iter().any(|n| n.op_type.contains("Quantize") || n.op_type.contains("Integer")) {
        return Err("the ONNX file is quantised; an fp32 export is needed".into());
    }
    if graph.initializer.iter().any(|t| t.data_location != 0) {
        return Err("the weights lie in another file beside the ONNX file; an export with the weights inside is needed".into());
    }
    let reader = Reader::new(&graph);
    let tensors = reader.tensors()?;
    let config = reader.config(&tensors)?;
    Ok(Imported { config, tensors })
}

/// Indexes over a graph.
struct Reader<'a> {
    graph: &'a Graph,
    weights: HashMap<&'a str, &'a Tensor>,
    constants: HashMap<&'a str, &'a Tensor>,
    made_by: HashMap<&'a str, &'a Node>,
}

impl<'a> Reader<'a> {
    fn new(graph: &'a Graph) -> Self {
        let weights: HashMap<_, _> = graph.initializer.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut constants = weights.clone();
        let mut made_by = HashMap::new();
        for node in &graph.node {
            for out in &node.output {
                made_by.insert(out.as_str(), node);
            }
            if node.op_type == "Constant"
                && let (Some(out), Some(t)) = (node.output.first(), node.attribute.iter().find_map(|a| a.t.as_ref()))
            {
                constants.insert(out, t);
            }
        }
        Self { graph, weights, constants, made_by }
    }

    /// All tensors of the encoder by BERT name.
    fn tensors(&self) -> Result<BTreeMap<String, RawTensor>, String> {
        let mut out = BTreeMap::new();
        for t in &self.graph.initializer {
            if let Some(name) = bert_name(&t.name) {
                out.insert(name.to_owned(), raw(t)?);
            }
        }
        for add in self.graph.node.iter().filter(|n| n.op_type == "Add") {
            let owner = add.input.iter().find_map(|i| bert_name(i)?.strip_suffix(".bias"));
            let product = add.input.iter().filter_map(|i| self.made_by.get(i.as_str())).find(|n| n.op_type == "MatMul");
            let (Some(owner), Some(product)) = (owner, product) else { continue };
            let Some(weight) = product.input.iter().find_map(|i| self.weights.get(i.as_str())) else { continue };
            out.insert(format!("{owner}.weight"), transposed(weight)?);
        }
        Ok(out)
    }

    /// The configuration, with every tensor that it implies checked for presence and shape.
    fn config(&self, tensors: &BTreeMap<String, RawTensor>) -> Result<serde_json::Value, String> {
        let shape = |name: &str| tensors.get(name).map(|t| t.shape.as_slice()).ok_or_else(|| format!("the ONNX file has no `{name}`"));
        let two = |name: &str| match shape(name)? {
            [a, b] => Ok((*a, *b)),
            other => Err(format!("`{name}` has the shape {other:?}, expected two dimensions")),
        };
        let (vocab, hidden) = two("embeddings.word_embeddings.weight")?;
        let (positions, _) = two("embeddings.position_embeddings.weight")?;
        let (types, _) = two("embeddings.token_type_embeddings.weight")?;
        let layers = (0..).take_while(|i| tensors.contains_key(&format!("encoder.layer.{i}.output.dense.bias"))).count();
        let (inner, _) = two("encoder.layer.0.intermediate.dense.weight")?;
        let heads = self.heads(hidden).ok_or("the number of attention heads can't be told from the ONNX graph")?;
        if !self.graph.node.iter().any(|n| n.op_type == "Erf" || n.op_type == "Gelu") {
            return Err("the ONNX graph has no GELU: not a BERT encoder".into());
        }
        for (name, expected) in expected_shapes(layers, vocab, positions, types, hidden, inner) {
            let found = shape(&name)?;
            if found != expected {
                return Err(format!("`{name}` has the shape {found:?}, expected {expected:?}"));
            }
        }
        Ok(json!({
            "architectures": ["BertModel"],
            "model_type": "bert",
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": positions,
            "type_vocab_size": types,
            "initializer_range": 0.02,
            "layer_norm_eps": self.norm_eps().unwrap_or(1e-12),
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
        }))
    }

    /// Number of heads: the first query is reshaped to batch × tokens × heads × width of a head.
    fn heads(&self, hidden: usize) -> Option<usize> {
        let is_query = |name: &str| bert_name(name) == Some("encoder.layer.0.attention.self.query.bias");
        let query = self.graph.node.iter().find(|n| n.op_type == "Add" && n.input.iter().any(|i| is_query(i)))?.output.first()?;
        let reshape = self.graph.node.iter().find(|n| n.op_type == "Reshape" && n.input.first() == Some(query))?;
        let shape = reshape.input.get(1)?;
        let dims: Vec<Option<i64>> = match self.constants.get(shape.as_str()) {
            Some(t) => t.ints()?.into_iter().map(Some).collect(),
            None => {
                let concat = self.made_by.get(shape.as_str()).filter(|n| n.op_type == "Concat")?;
                concat.input.iter().map(|i| self.constants.get(i.as_str())?.ints()?.first().copied()).collect()
            }
        };
        let heads = usize::try_from((*dims.get(2)?)?).ok()?;
        let width = usize::try_from((*dims.get(3)?)?).unwrap_or(hidden / heads.max(1));
        (dims.len() == 4 && heads > 0 && heads * width == hidden).then_some(heads)
    }

    /// The small number under the root of the layer norms.
    fn norm_eps(&self) -> Option<f64> {
        self.graph.node.iter().filter(|n| n.op_type == "Add").find_map(|add| {
            let from_mean = |i: &String| self.made_by.get(i.as_str()).is_some_and(|n| n.op_type == "ReduceMean");
            add.input.iter().find(|i| from_mean(i))?;
            let eps = add.input.iter().find_map(|i| self.constants.get(i.as_str()))?.floats()?;
            // by way of its text: the graph has it as f32, and 1e-12 should stay 1e-12
            eps.first().filter(|e| **e > 0.0 && **e < 1e-3).and_then(|e| format!("{e:e}").parse().ok())
        })
    }
}

fn expected_shapes(
    layers: usize,
    vocab: usize,
    positions: usize,
    types: usize,
    hidden: usize,
    inner: usize,
) -> impl Iterator<Item = (String, Vec<usize>)> {
    let top = [
        ("word_embeddings.weight", vec![vocab, hidden]),
        ("position_embeddings.weight", vec![positions, hidden]),
        ("token_type_embeddings.weight", vec![types, hidden]),
        ("LayerNorm.weight", vec![hidden]),
        ("LayerNorm.bias", vec![hidden]),
    ];
    let layer = move |i: usize| {
        [
            ("attention.self.query.weight", vec![hidden, hidden]),
            ("attention.self.query.bias", vec![hidden]),
            ("attention.self.key.weight", vec![hidden, hidden]),
            ("attention.self.key.bias", vec![hidden]),
            ("attention.self.value.weight", vec![hidden, hidden]),
            ("attention.self.value.bias", vec![hidden]),
            ("attention.output.dense.weight", vec![hidden, hidden]),
            ("attention.output.dense.bias", vec![hidden]),
            ("attention.output.LayerNorm.weight", vec![hidden]),
            ("attention.output.LayerNorm.bias", vec![hidden]),
            ("intermediate.dense.weight", vec![inner, hidden]),
            ("intermediate.dense.bias", vec![inner]),
            ("output.dense.weight", vec![hidden, inner]),
            ("output.dense.bias", vec![hidden]),
            ("output.LayerNorm.weight", vec![hidden]),
            ("output.LayerNorm.bias", vec![hidden]),
        ]
        .map(|(n, s)| (format!("encoder.layer.{i}.{n}"), s))
    };
    top.map(|(n, s)| (format!("embeddings.{n}"), s)).into_iter().chain((0..layers).flat_map(layer))
}

/// The name inside the encoder, without the prefix that some exports put before it.
fn bert_name(name: &str) -> Option<&str> {
    let inner = ["bert.", "model.", "0.auto_model.", "auto_model."].iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    (inner.starts_with("embeddings.") || inner.starts_with("encoder.layer.")).then_some(inner).filter(|n| !n.ends_with("position_ids"))
}

fn dims(t: &Tensor) -> Result<Vec<usize>, String> {
    t.dims.iter().map(|d| usize::try_from(*d).map_err(|_| format!("`{}` has a negative dimension", t.name))).collect()
}

fn raw(t: &Tensor) -> Result<RawTensor, String> {
    let shape = dims(t)?;
    let bad = || format!("`{}` is not a whole f32 tensor", t.name);
    if t.data_type != proto::FLOAT {
        return Err(bad());
    }
    let data = if t.raw_data.is_empty() { t.float_data.iter().flat_map(|x| x.to_le_bytes()).collect() } else { t.raw_data.clone() };
    (t.count().and_then(|n| n.checked_mul(4)) == Some(data.len())).then_some(RawTensor { shape, data }).ok_or_else(bad)
}

fn transposed(t: &Tensor) -> Result<RawTensor, String> {
    let plain = raw(t)?;
    let &[rows, cols] = plain.shape.as_slice() else {
        return Err(format!("`{}` has the shape {:?}, expected two dimensions", t.name, plain.shape));
    };
    let words = plain.data.as_chunks::<4>().0;
    let mut data = Vec::with_capacity(plain.data.len());
    for c in 0..cols {
        for word in words.iter().skip(c).step_by(cols.max(1)) {
            data.extend_from_slice(word);
        }
    }
    Ok(RawTensor { shape: vec![cols, rows], data: data.into() })
}

#[cfg(test)]
mod tests {
    use super::proto::{Attribute, FLOAT, INT64};
    use super::*;

    const H: usize = 4;
    const INNER: usize = 6;

    fn floats(name: &str, dims: &[usize], seed: f32) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor {
            dims: dims.iter().map(|d| *d as i64).collect(),
            data_type: FLOAT,
            name: name.into(),
            raw_data: (0..n).flat_map(|i| (seed + i as f32).to_le_bytes()).collect(),
            ..Tensor::default()
        }
    }

    fn node(op: &str, input: &[&str], output: &str) -> Node {
        let own = |s: &[&str]| s.iter().map(|s| (*s).to_owned()).collect();
        Node { op_type: op.into(), input: own(input), output: own(&[output]), attribute: vec![] }
    }

    fn constant(name: &str, value: i64) -> Node {
        let t = Tensor { dims: vec![1], data_type: INT64, raw_data: value.to_le_bytes().to_vec().into(), ..Tensor::default() };
        Node { attribute: vec![Attribute { name: "value".into(), t: Some(t) }], ..node("Constant", &[], name) }
    }

    /// A one-layer encoder with two heads, as an exporter writes it.
    fn tiny() -> Model {
        let mut initializer = vec![];
        let mut nodes = vec![node("Erf", &["x"], "y"), constant("h", 2), constant("w", 2)];
        for (name, shape) in expected_shapes(1, 5, 8, 2, H, INNER) {
            let Some(owner) = name.strip_suffix(".weight").filter(|_| shape.len() == 2 && !name.starts_with("embeddings")) else {
                initializer.push(floats(&name, &shape, 0.0));
                continue;
            };
            let anonymous = format!("onnx::MatMul_{}", initializer.len());
            initializer.push(floats(&anonymous, &[shape[1], shape[0]], 100.0));
            nodes.push(node("MatMul", &["h0", &anonymous], &format!("{owner}/mm")));
            nodes.push(node("Add", &[&format!("{owner}.bias"), &format!("{owner}/mm")], &format!("{owner}/add")));
        }
        nodes.push(node("Concat", &["b", "s", "h", "w"], "shape"));
        nodes.push(node("Reshape", &["encoder.layer.0.attention.self.query/add", "shape"], "q"));
        Model { graph: Some(Graph { node: nodes, initializer }) }
    }

    fn run(model: &Model) -> Result<Imported, String> {
        import(model.encode_to_vec().into())
    }

    #[test]
    fn anonymous_weights_find_their_owner_and_are_turned() {
        let got = run(&tiny()).unwrap();
        assert_eq!(got.tensors.len(), 5 + 16);
        assert_eq!((got.config["num_attention_heads"].clone(), got.config["num_hidden_layers"].clone()), (json!(2), json!(1)));
        let weight = &got.tensors["encoder.layer.0.intermediate.dense.weight"];
        assert_eq!(weight.shape, [INNER, H]);
        let second = f32::from_le_bytes(weight.data[4..8].try_into().unwrap());
        assert_eq!(second, 100.0 + INNER as f32, "row-major [out, in] from [in, out]");
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut model = tiny();
        model.graph.as_mut().unwrap().initializer.retain(|t| t.name != "encoder.layer.0.output.LayerNorm.bias");
        assert!(run(&model).err().unwrap().contains("encoder.layer.0.output.LayerNorm.bias"));

        let mut model = tiny();
        model.graph.as_mut().unwrap().node.retain(|n| n.output != ["encoder.layer.0.attention.self.key/add"]);
        assert!(run(&model).err().unwrap().contains("attention.self.key.weight"));
    }

    #[test]
    fn foreign_files_are_refused_in_words() {
        assert!(import(Bytes::from_static(b"not a model at all")).err().unwrap().contains("not an ONNX file"));
        assert!(import(Bytes::new()).err().unwrap().contains("no graph"));
        let mut model = tiny();
        model.graph.as_mut().unwrap().node.push(node("DynamicQuantizeLinear", &[], "z"));
        assert!(run(&model).err().unwrap().contains("quantised"));
        let mut model = tiny();
        model.graph.as_mut().unwrap().initializer[3].raw_data.truncate(3);
        assert!(run(&model).err().unwrap().contains("not a whole f32 tensor"));
        let mut model = tiny();
        model.graph.as_mut().unwrap().initializer[0].dims = vec![i64::MAX, i64::MAX];
        assert!(run(&model).is_err());
    }
}

//! The few fields of the ONNX format that an import needs, as protobuf messages. Unknown fields are skipped by the decoder.

use prost::bytes::Bytes;

/// A file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Model {
    /// The computation.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
}

/// Nodes and constants.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Graph {
    /// Operations, in an order in which they can run.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    /// Weights.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
}

/// One operation.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// Names of the values it reads.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the values it makes.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Kind, such as `MatMul`.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
}

/// A setting of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attribute {
    /// Name, such as `value`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value when it is a tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<Tensor>,
}

/// Numbers with a shape.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    /// Shape.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// Type code: [`FLOAT`], [`INT64`] or another that is not read here.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Values of a float tensor, when not raw.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Values of an int64 tensor, when not raw.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Values as little-endian bytes.
    #[prost(bytes = "bytes", tag = "9")]
    pub raw_data: Bytes,
    /// 1 = the values lie in another file.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// Type code of f32.
pub const FLOAT: i32 = 1;
/// Type code of i64.
pub const INT64: i32 = 7;

impl Tensor {
    /// Number of values by the shape, if the shape is sound.
    pub fn count(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?))
    }

    /// Values of a float tensor, if it is one and whole.
    pub fn floats(&self) -> Option<Vec<f32>> {
        if self.data_type != FLOAT || self.data_location != 0 {
            return None;
        }
        let values: Vec<f32> = if self.raw_data.is_empty() {
            self.float_data.clone()
        } else {
            self.raw_data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        (self.count() == Some(values.len())).then_some(values)
    }

    /// Values of an int64 tensor, if it is one and whole.
    pub fn ints(&self) -> Option<Vec<i64>> {
        if self.data_type != INT64 || self.data_location != 0 {
            return None;
        }
        let values: Vec<i64> = if self.raw_data.is_empty() {
            self.int64_data.clone()
        } else {
            self.raw_data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
        };
        (self.count() == Some(values.len())).then_some(values)
    }
}

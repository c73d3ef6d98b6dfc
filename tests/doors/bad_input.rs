//! Bad input: refused with the place of the fault, without a panic, without a heap of memory.

use crate::fakes::{Node, node};
use agent_reach::api::grpc::status::error_of;
use prost::bytes::{Buf, BufMut};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

#[tokio::test]
async fn json_that_is_wrong_names_its_place() {
    let node = node(&[], "").await;
    let deep = "[".repeat(100_000);
    let deep_objects = "{\"a\":".repeat(100_000);
    let in_payload = format!("{{\"payload\":{}", "[".repeat(100_000));
    let keys: String = (0..300_000).map(|i| format!("\"{i}\":0,")).collect();
    let many_keys = format!("{{\"payload\":{{{keys}\"x\":0}}}}");
    let empty = format!("{{\"requests\":[{}{{}}]}}", "{},".repeat(1_000_000));
    let table: &[(&str, &[u8], &str)] = &[
        ("/v1/resolve", b"", ""),
        ("/v1/resolve", b"{", ""),
        ("/v1/resolve", b"[]", ""),
        ("/v1/resolve", b"null", ""),
        ("/v1/resolve", b"{} {}", ""),
        ("/v1/resolve", b"\xef\xbb\xbf{}", ""),
        ("/v1/resolve", b"\xff\xfe{}", ""),
        ("/v1/resolve", b"{\"query\":\"\xff\"}", ""),
        ("/v1/resolve", b"{\"query\":\"\\ud800\"}", "/query"),
        ("/v1/resolve", b"{\"query\":\"a\0b\"}", "/query"),
        ("/v1/resolve", b"{\"query\":7}", "/query"),
        ("/v1/resolve", b"{\"query\":null}", "/query"),
        ("/v1/resolve", b"{\"query\":\"x\",\"query\":\"y\"}", "/query"),
        ("/v1/resolve", b"{\"query\":\"x\",\"colour\":1}", "/colour"),
        ("/v1/resolve", b"{\"query\":\"x\",\"k\":-1}", "/k"),
        ("/v1/resolve", b"{\"query\":\"x\",\"k\":1.5}", "/k"),
        ("/v1/resolve", b"{\"query\":\"x\",\"k\":99999999999}", "/k"),
        ("/v1/resolve", b"{\"query\":\"x\",\"max_cost\":NaN}", "/max_cost"),
        ("/v1/resolve", b"{\"query\":\"x\",\"max_cost\":1e999999}", "/max_cost"),
        ("/v1/resolve", b"{\"query\":\"x\",\"attributes\":[1]}", "/attributes"),
        ("/v1/resolve", b"{\"query\":\"x\",\"attributes\":{\"a\":{\"b\":1}}}", "/attributes/a"),
        ("/v1/resolve", b"{\"query\":\"x\",\"payload\":{\"a\":1,\"a\":2}}", "/payload/a"),
        ("/v1/resolve", b"{\"query\":\"x\",\"preferred\":{}}", "/preferred"),
        ("/v1/resolve/batch", b"{\"requests\":[{\"query\":\"x\"},{\"query\":[]}]}", "/requests/1/query"),
        ("/v1/agents/a%ff/b/heartbeat", b"", ""),
        ("/v1/agents/A/b/heartbeat", b"", "/agent/namespace"),
        ("/v1/agents/a/..%2Fb/heartbeat", b"", "/agent/agent_id"),
        ("/v1/agents", b"{\"namespace\": ", ""),
    ];
    let long: Vec<(&str, &[u8])> = vec![
        ("/v1/resolve", deep.as_bytes()),
        ("/v1/resolve", deep_objects.as_bytes()),
        ("/v1/resolve", in_payload.as_bytes()),
        ("/v1/resolve", many_keys.as_bytes()),
        ("/v1/resolve/batch", empty.as_bytes()),
        ("/v1/agents", deep.as_bytes()),
    ];
    for (path, body, pointer) in table {
        let (status, refused) = node.post(path, body.to_vec()).await;
        let shown = String::from_utf8_lossy(body);
        assert_eq!((status, refused["error"]["code"].as_str()), (400, Some("invalid_argument")), "{path} {shown}: {refused}");
        assert_eq!(refused["error"]["faults"][0]["pointer"].as_str(), Some(*pointer), "{path} {shown}: {refused}");
    }
    for (path, body) in long {
        let (status, refused) = node.post(path, body.to_vec()).await;
        assert_eq!(
            (status, refused["error"]["code"].as_str()),
            (400, Some("invalid_argument")),
            "{path} {:.40}: {refused}",
            String::from_utf8_lossy(body)
        );
    }
    for query in ["/v1/agents?limit=x", "/v1/agents?limit=1&limit=2", "/v1/agents?nope=1", "/v1/agents/a/b?limit=1"] {
        assert_eq!(node.get(query).await.0, 400, "{query}");
    }
    for yaml in ["a: [1", "a: &a [*a]", "- 1\n- 2\n---\n- 3", "\t", "a: !!binary x"] {
        let response = node.http.post(node.url("/v1/agents")).header("content-type", "application/yaml").body(yaml).send().await.unwrap();
        assert_eq!(response.status(), 400, "{yaml}");
    }
    let packed = node.http.post(node.url("/v1/resolve")).header("content-encoding", "gzip").body("x").send().await.unwrap();
    assert_eq!(packed.status(), 400);
    node.still_serves().await;
}

#[tokio::test]
async fn a_panic_is_an_answer() {
    let node = node(&[], "").await;
    let (status, refused) = node.post("/v1/resolve", r#"{"query":"panic"}"#).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (500, Some("internal")));
    let status = node
        .matcher()
        .await
        .resolve(agent_reach::api::pb::ResolveRequest { query: "panic".into(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::Internal);
    assert!(!status.message().contains("CANARY"));
    node.still_serves().await;
}

/// Sends bytes as a message, whatever they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, buf: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        buf.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining()).to_vec()))
    }
}

async fn raw(node: &Node, method: &'static str, bytes: Vec<u8>) -> tonic::Status {
    let mut client = tonic::client::Grpc::new(node.channel().await);
    client.ready().await.unwrap();
    client.unary(tonic::Request::new(bytes), method.parse().unwrap(), Raw).await.expect_err("must be refused")
}

/// Largest resident memory of this process so far, KiB.
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

#[tokio::test]
async fn protobuf_that_is_wrong_is_the_callers_fault() {
    let node = node(&[], "").await;
    const RESOLVE: &str = "/agentreach.v1.Matcher/Resolve";
    const BATCH: &str = "/agentreach.v1.Matcher/ResolveBatch";
    const REGISTER: &str = "/agentreach.v1.Registry/Register";
    let mut nested = Vec::new();
    for _ in 0..101 {
        let mut around = vec![0x0a];
        prost::encoding::encode_varint(nested.len() as u64, &mut around);
        around.extend(&nested);
        nested = around;
    }
    let table: Vec<(&'static str, Vec<u8>, &str)> = vec![
        (RESOLVE, vec![0xff; 100], "invalid_argument"),
        (RESOLVE, vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], "invalid_argument"),
        (RESOLVE, vec![0x0a, 0x02, 0xff, 0xfe], "invalid_argument"),
        (RESOLVE, vec![0x1a, 0x01, b'{'], "invalid_argument"),
        (RESOLVE, [vec![0x0a, 0x01, b'x', 0x1a], vec![0xa0, 0x8d, 0x06], vec![b'['; 100_000]].concat(), "invalid_argument"),
        (REGISTER, nested, "invalid_argument"),
        (REGISTER, vec![], "invalid_argument"),
        (BATCH, [0x0a, 0x00].repeat(1_000_000), "payload_too_large"),
        (REGISTER, [vec![0x0a, 0x80, 0x89, 0x7a], [0x9a, 0x01, 0x00].repeat(666_667)].concat(), "payload_too_large"),
        (RESOLVE, vec![0x0a; (4 << 20) + 1], "payload_too_large"),
        ("/agentreach.v1.Matcher/Nope", vec![], "not_found"),
        ("/nope.Nope/Nope", vec![], "not_found"),
    ];
    let before = peak_kib();
    for (method, bytes, code) in table {
        let shown = format!("{method} {:?} …", &bytes[..bytes.len().min(12)]);
        let status = raw(&node, method, bytes).await;
        let error = error_of(&status).unwrap_or_else(|| panic!("{shown}: no detail in {status:?}"));
        assert_eq!(error.code, code, "{shown}: {status:?}");
    }
    let grown = peak_kib().saturating_sub(before);
    assert!(grown < 200 * 1024, "{grown} KiB more at the peak");
    // what is not known is skipped, as protobuf wants it
    let mut client = tonic::client::Grpc::new(node.channel().await);
    client.ready().await.unwrap();
    client.unary(tonic::Request::new(vec![0x0a, 0x01, b'x', 0xf8, 0x3f, 0x01]), RESOLVE.parse().unwrap(), Raw).await.unwrap();
    node.still_serves().await;
}

#[tokio::test]
async fn compressed_messages_are_not_unfolded() {
    let node = node(&[], "").await;
    let mut matcher = node.matcher().await.send_compressed(tonic::codec::CompressionEncoding::Gzip).max_encoding_message_size(1 << 30);
    let before = peak_kib();
    let bomb = agent_reach::api::pb::ResolveRequest { query: "0".repeat(256 << 20), ..Default::default() };
    let built = peak_kib();
    let status = matcher.resolve(bomb).await.unwrap_err();
    assert!(matches!(status.code(), tonic::Code::Unimplemented | tonic::Code::InvalidArgument | tonic::Code::NotFound), "{status:?}");
    assert!(built >= before, "the bomb itself is in this process");
    node.still_serves().await;
}

#[tokio::test]
async fn http2_floods_end_their_connection() {
    let node = node(&[], "").await;
    for door in [node.doors.grpc, node.doors.http] {
        for flood in ["reset", "continuation", "data", "settings"] {
            let mut stream = tokio::net::TcpStream::connect(door).await.unwrap();
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            bytes.extend(frame(0x4, 0, 0, &[]));
            // :method GET, :scheme http, :path /, :authority x
            let headers = [0x82, 0x86, 0x84, 0x41, 0x01, b'x'];
            match flood {
                "reset" => {
                    for i in 0..20_000u32 {
                        bytes.extend(frame(0x1, 0x5, i * 2 + 1, &headers));
                        bytes.extend(frame(0x3, 0, i * 2 + 1, &[0, 0, 0, 8]));
                    }
                }
                "continuation" => {
                    bytes.extend(frame(0x1, 0x1, 1, &headers));
                    for _ in 0..20_000 {
                        bytes.extend(frame(0x9, 0, 1, &[0x40, 0x01, b'a', 0x01, b'b']));
                    }
                }
                "data" => {
                    bytes.extend(frame(0x1, 0x4, 1, &headers));
                    (0..50_000).for_each(|_| bytes.extend(frame(0x0, 0, 1, &[])));
                }
                _ => (0..50_000).for_each(|_| bytes.extend(frame(0x4, 0, 0, &[]))),
            }
            // the server may close while we write, and may answer more than we read
            let (mut read, mut write) = stream.split();
            let mut sink = vec![0; 1 << 16];
            let writing = async { write.write_all(&bytes).await.ok() };
            let reading = async { while read.read(&mut sink).await.is_ok_and(|n| n > 0) {} };
            tokio::time::timeout(Duration::from_secs(5), async { tokio::join!(writing, reading) }).await.ok();
            node.still_serves().await;
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

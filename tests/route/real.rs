//! On the real models: languages, paraphrases, negation, two requests, out of scope; and the demo fleet.

use crate::harness::*;
use agent_reach::ingest::files;
use agent_reach::types::DecisionKind::{Auto, None as Nobody, Suggest};
use agent_reach::types::Principal;
use agent_reach::types::manifest_check::Rules;
use serde_json::json;
use std::path::Path;

/// L3, L5, L7, E2 and the languages, on one small fleet (each text is embedded once).
#[tokio::test(flavor = "multi_thread")]
async fn both_languages_route() {
    let w = real(tempfile::tempdir().unwrap()).await;
    let both = |intent: &str, zh: &str, en: &str| json!({"intent": intent, "description": {"zh": zh, "en": en}});
    w.register(json!({"namespace": "shop", "agent_id": "desk", "ttl": "none", "endpoints": [{"protocol": "pull"}], "capabilities": [
        both("refund_create", "为订单办理退款，把钱退还给顾客", "Refunds an order and returns the money to the customer"),
        both("exchange_create", "把商品换成另一个尺码或颜色", "Exchanges an article for another size or colour"),
        both("shipment_track", "查询包裹现在到了哪里", "Tells where a parcel is right now"),
        both("invoice_issue", "为订单开具发票", "Issues an invoice for an order"),
        both("translate_text", "把一段文字翻译成另一种语言", "Translates a text into another language"),
        json!({"intent": "law_search", "description": "日本の法令を検索します"}),
        json!({"intent": "auth_notes", "description": "认证系统使用JWT令牌的说明"}),
    ]}))
    .await;
    let first = |d: &agent_reach::types::Decision| d.candidates.first().map(|c| c.capability.to_string()).unwrap_or_default();
    for (query, wanted) in [
        ("鞋子小了，能帮我换大一号吗", "exchange_create"),
        ("my money back please, the order was cancelled", "refund_create"),
        ("包裹三天没动了，现在在哪", "shipment_track"),
        ("帮我把这段话翻成英文", "translate_text"),
        ("法令を調べて", "law_search"),
        ("用JWT做认证", "auth_notes"),
        ("不是要退款，是想换一件大一号的", "exchange_create"),
        ("I don't want a refund, just exchange it for a blue one", "exchange_create"),
        ("帮我 track 一下 parcel 到哪了", "shipment_track"),
    ] {
        let d = w.ask(query).await.decision;
        assert_eq!(
            first(&d),
            wanted,
            "{query}: {:?}",
            d.candidates.iter().map(|c| (c.capability.to_string(), c.probability.get())).collect::<Vec<_>>()
        );
        assert_ne!(d.kind, Nobody, "{query}");
    }
    let two = w.ask("帮我查一下包裹到哪了，顺便给订单开具发票").await.decision;
    let named: Vec<String> = two.candidates.iter().take(2).map(|c| c.capability.to_string()).collect();
    assert_eq!(two.kind, Suggest);
    assert!(named.contains(&"shipment_track".into()) && named.contains(&"invoice_issue".into()), "{named:?}");
    let mail = w.ask("send gmail email to the whole team").await.decision;
    assert_ne!(mail.kind, Auto, "no mail agent is registered");
    let long = format!("请查询包裹。{}", "今天天气很好我们去公园散步然后回家吃饭".repeat(400));
    let long = w.ask(&long).await;
    assert!(long.decision.warnings.iter().any(|n| n.code == "field_truncated"), "E2: cut with a note, never an error");
}

/// The demo fleet registers without a fault, and every capability can be asked for by name.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_fleet_registers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/fleet");
    let read = files::read(&folder, &Rules::default()).unwrap();
    assert!(read.faults.is_empty(), "{:?}", read.faults);
    let capabilities: usize = read.manifests.iter().map(|m| m.capabilities.len()).sum();
    assert!(read.manifests.len() >= 25 && capabilities >= 80);
    let w = world().await;
    let batch = w.ingest.register_many(&Principal::local("t"), read.manifests.clone()).await.unwrap();
    assert!(batch.refused.is_empty(), "{:?}", batch.refused);
    assert_eq!(batch.capabilities, capabilities);
    for m in &read.manifests {
        for c in &m.capabilities {
            let d = w.ask(&c.intent).await.decision;
            let open = d.candidates.iter().any(|x| x.capability == c.intent) || d.dropped.iter().any(|x| x.capability == c.intent);
            assert!(open, "{} {}", m.agent_id, c.intent);
        }
    }
}

/// Ten thousand capabilities of the scale corpora register; a restart embeds none of them again.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_capabilities_register() {
    let Some(data) = shared("ten_thousand_capabilities_register") else { return };
    let rules = Rules { long: agent_reach::types::manifest_check::Long::Cut };
    let mut manifests = Vec::new();
    for set in ["scale_mcp_en", "scale_public_apis", "scale_docker_mcp", "scale_mcp_zh", "scale_c3_tools_zh"] {
        manifests.extend(files::read(&data.join(set).join("manifests.jsonl"), &rules).unwrap().manifests);
    }
    let w = world().await;
    let batch = w.ingest.register_many(&Principal::local("t"), manifests).await.unwrap();
    assert!(batch.capabilities >= 10_000, "{} capabilities, {} refused", batch.capabilities, batch.refused.len());
    let folder = w.close();
    let w = open(folder, agent_reach::types::policy::Policy::default(), "fake").await;
    assert!(w.loaded.capabilities >= 10_000);
    assert_eq!((w.embedded(), w.loaded.pending), (0, 0));
    assert_ne!(w.ask("query a database with sql").await.decision.candidates.len(), 0);
}

//! A machine that lies: one thing of what it says is changed, everything else is the truth of a real TPM.

use anyhow::{Result, bail, ensure};
use attest_wire::v1::{
    AttestationResult, Attested as Signed, Binding, Challenge, Evidence, Hello, LldpReport, Verdict,
};

use super::scene::{PORT, Scene, When};
use crate::exchange::{Connection, Node, activation, say_hello, send_evidence};
use crate::sim::{ATTEST, Machine};
use crate::switch::lldp_frame;

/// A machine that is admitted when it tells the truth, with its TPM open and its keys made.
pub struct Liar<'a, 'b> {
    /// The site.
    pub scene: &'a mut Scene<'b>,
    /// The machine.
    pub machine: &'a Machine,
    /// Its TPM and what it says.
    pub node: Node<'a>,
    /// Its honest hello.
    pub hello: Hello,
    /// `unique` of its AK.
    pub unique: [u8; 64],
}

impl<'a, 'b> Liar<'a, 'b> {
    /// Makes the keys. The machine hears its switch port.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn new(scene: &'a mut Scene<'b>, machine: &'a Machine, mut node: Node<'a>) -> Result<Self> {
        let (mut hello, _) = node.hello()?;
        hello.lldp = vec![heard(lldp_frame(PORT, 120))];
        let unique = [0x2a; 64];
        hello.ak_pub = hw::tpm::NodeTpm::create_ak(node.tpm, unique)?.into();
        Ok(Self {
            scene,
            machine,
            node,
            hello,
            unique,
        })
    }

    /// Says the truth; what comes back.
    ///
    /// # Errors
    /// No answer.
    pub fn honestly(&mut self) -> Result<AttestationResult> {
        let mut connection = Connection::open(ATTEST)?;
        let (challenge, binding) = match say_hello(&mut connection, &self.hello)? {
            Ok(challenged) => challenged,
            Err(refusal) => return Ok(refusal),
        };
        let evidence = self.node.evidence(&self.hello, &challenge, &binding)?;
        send_evidence(&mut connection, &evidence)
    }

    /// The truth passes.
    ///
    /// # Errors
    /// It does not.
    pub fn truth_passes(&mut self) -> Result<()> {
        let result = self.honestly()?;
        ensure!(
            result.verdict == Verdict::Admitted,
            "the truth: {} {}",
            result.code,
            result.hint
        );
        self.scene.admissions += 1;
        Ok(())
    }

    /// A hello that is not even challenged.
    ///
    /// # Errors
    /// It is, or for another reason.
    pub fn hello_refused(&mut self, lie: &str, code: &'static str, hello: &Hello) -> Result<()> {
        let mut connection = Connection::open(ATTEST)?;
        match say_hello(&mut connection, hello)? {
            Ok(_) => bail!("{lie}: challenged, expected {code}"),
            Err(result) => self.scene.refused(lie, code, When::Unproven, &result),
        }
    }

    /// An honest exchange but for one change of the evidence.
    ///
    /// # Errors
    /// It is not refused for that.
    pub fn evidence_refused(
        &mut self,
        lie: &str,
        code: &'static str,
        change: impl FnOnce(&mut Evidence, &mut Node<'a>, &Challenge, &Binding) -> Result<()>,
    ) -> Result<()> {
        let hello = self.hello.clone();
        self.refused_after(&hello, lie, code, change)
    }

    /// The same with a hello of one's own.
    ///
    /// # Errors
    /// It is not refused for that.
    pub fn refused_after(
        &mut self,
        hello: &Hello,
        lie: &str,
        code: &'static str,
        change: impl FnOnce(&mut Evidence, &mut Node<'a>, &Challenge, &Binding) -> Result<()>,
    ) -> Result<()> {
        let mut connection = Connection::open(ATTEST)?;
        let (challenge, binding) = say_hello(&mut connection, hello)?
            .map_err(|refusal| anyhow::anyhow!("{lie}: hello refused: {}", refusal.code))?;
        let mut evidence = self.node.evidence(hello, &challenge, &binding)?;
        change(&mut evidence, &mut self.node, &challenge, &binding)?;
        let result = send_evidence(&mut connection, &evidence)?;
        self.scene.refused(lie, code, When::Proven, &result)
    }

    /// Evidence of one who could not open the credential and guesses the secret.
    ///
    /// # Errors
    /// The TPM fails, or opens it.
    pub fn guessed(
        &mut self,
        hello: &Hello,
        challenge: &Challenge,
        binding: &Binding,
    ) -> Result<Evidence> {
        self.opens_nothing(hello, challenge)?;
        let mut without = challenge.clone();
        without.credentials.clear();
        let mut evidence = self.node.evidence(hello, &without, binding)?;
        evidence.activated = challenge
            .credentials
            .iter()
            .map(|_| activation(&[0x5a; 32], binding).into())
            .collect();
        Ok(evidence)
    }

    /// No credential of the challenge opens in this machine's TPM.
    ///
    /// # Errors
    /// One does.
    pub fn opens_nothing(&mut self, hello: &Hello, challenge: &Challenge) -> Result<()> {
        use hw::tpm::NodeTpm as _;
        ensure!(!challenge.credentials.is_empty(), "no credential");
        for credential in &challenge.credentials {
            let ek = &hello.eks[usize::from(credential.ek)].public.0;
            ensure!(
                self.node
                    .tpm
                    .activate(ek, &credential.blob.0, &credential.secret.0)
                    .is_err(),
                "the TPM opened a credential for an AK that it does not hold"
            );
        }
        Ok(())
    }
}

/// A frame heard half a second ago.
pub fn heard(frame: Vec<u8>) -> LldpReport {
    LldpReport {
        frame: frame.into(),
        age_ms: 500,
        nic: "eth0".into(),
    }
}

/// What a TPM signed, for the wire.
pub fn signed(attested: hw::tpm::Attested) -> Signed {
    Signed {
        attest: attested.attest.into(),
        sig: attested.signature.into(),
    }
}

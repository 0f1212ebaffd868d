r"""The labelled suite: completions, gold answers, and what a careful person says about them.

A math case whose text holds no box stands for `So the answer is \boxed{text}.`; `ANY` leaves the extracted answer
unchecked. The few cases that math-verify judges otherwise than a careful person would are marked KNOWN in their why.
"""

from typing import NamedTuple

ANY = "(any answer)"


class Case(NamedTuple):
    kind: str
    text: str
    gold: str
    correct: bool
    why: str
    answer: str | None = ANY
    options: list[str] | None = None


def boxed(answer: str, gold: str, correct: bool, why: str) -> Case:
    return Case("math", rf"So the answer is $\boxed{{{answer}}}$.", gold, correct, why, answer)


def said(text: str, gold: str, correct: bool, why: str, answer: str | None = ANY) -> Case:
    return Case("math", text, gold, correct, why, answer)


PLACES = [
    said(r"\boxed{12}, or rather \boxed{13}.", "12", False, "the last box counts", "13"),
    said(r"<think>\boxed{3}</think> It is \boxed{4}.", "4", True, "the box after the thinking block counts", "4"),
    said(r"<think>\boxed{4}</think> It is 4.", "4", False, "after closed thinking only the rest counts", None),
    said(r"<think>I get \boxed{4}, but", "4", False, "thinking cut at the budget has no answer", None),
    said(r"so it is 4 </think> \boxed{4}", "4", True, "the template may have opened the thinking block", "4"),
    said(r"<think>a</think>x<think>\boxed{5}</think>\boxed{4}", "4", True, "two thinking blocks", "4"),
    said(r"<think>a</think>\boxed{4}<think>hm \boxed{5}", "4", True, "an answer given before thinking again", "4"),
    said(r"It is \boxed{4", "4", False, "a box cut at the budget", None),
    said(r"It is \boxed{\frac{1}{2}", r"\frac{1}{2}", False, "a box cut inside a fraction", None),
    said(r"\boxed{4}, that is \boxed{", "4", True, "an unfinished box does not undo a finished one", "4"),
    said(r"\boxed{}", "4", False, "an empty box", ""),
    said(r"\boxed {4}", "4", True, "a space before the brace", "4"),
    said(r"$\boxed 42$.", "42", True, "a box without braces holds all digits", "42"),
    said(r"\fbox{4}", "4", True, "another command for a box", "4"),
    said(r"\boxed{\boxed{4}}", "4", True, "a box in a box", "4"),
    said(
        r"\[\boxed{\frac{1}{\sqrt{2}}}\]", r"\frac{\sqrt{2}}{2}", True, "three levels of braces", r"\frac{1}{\sqrt{2}}"
    ),
    said(r"\boxed{\{1, 2\}}", r"\{2, 1\}", True, "escaped braces inside a box", r"\{1, 2\}"),
    said(r"$x=\boxed{3}$ or $x=\boxed{5}$", "3,5", True, "a list of boxes for a list of answers", "3, 5"),
    said(r"$x=\boxed{3}$ or $x=\boxed{5}$", "3,7", False, "a list of boxes with a wrong one", "5"),
    said(r"\boxed{3} and 12 more lines of text, then \boxed{5}", "3,5", False, "boxes far apart are no list", "5"),
    said("It is \\boxed{\n4\n}.", "4", True, "line breaks inside the box", "\n4\n"),
    said(r"\(\boxed 7\)", "7", True, "math signs after a box without braces", "7"),
    said("} } \\boxed", "7", False, "closing braces and a box of nothing", None),
    said(r"\boxedwidth and \boxed{4}", "4", True, "another command that begins like a box", "4"),
]
NUMBERS = [
    boxed("12.0", "12", True, "same number"),
    boxed("013", "13", True, "AIME answers have leading zeros"),
    boxed("-12", "12", False, "the sign matters"),
    boxed("−12", "-12", True, "a typographic minus"),
    boxed("12.0001", "12", False, "close is not equal"),
    boxed("5.", "5", True, "a full stop inside the box"),
    boxed("1,000", "1000", True, "thousands separator"),
    boxed("1{,}000", "1000", True, "thousands separator in braces"),
    boxed(r"10,\!080", "10080", True, "thousands separator with a negative space"),
    boxed(r"1\,000", "1000", True, "thin space between thousands"),
    boxed("1 000 000", "1000000", True, "spaces between thousands"),
    boxed("1,000", "1", False, "a thousands separator is no list"),
    boxed("(1,000)", "1000", False, "a pair is no number"),
    boxed("1,00", "100", False, "two digits after a comma are no thousands"),
    boxed("1.5e3", "1500", True, "scientific notation of programs"),
    boxed(r"1.5 \times 10^{3}", "1500", True, "scientific notation"),
    boxed(r"3.2 \cdot 10^{-5}", "0.000032", True, "scientific notation with a small number"),
    boxed(r"2 \text{ million}", "2000000", True, "a million in words"),
    boxed(r"2 \text{ million}", "2", True, "the question may ask for millions"),
    boxed(r"2 \text{ million}", "2000", False, "a million is not a thousand"),
    boxed("0.333", r"\frac{1}{3}", False, "a rounded fraction"),
    boxed("0.333333", r"\frac{1}{3}", True, "six decimals, the verifier's precision"),
    boxed(r"0.\overline{3}", r"\frac{1}{3}", True, "repeating decimal"),
    boxed(r"0.1\overline{6}", r"\frac{1}{6}", True, "repeating decimal with a start"),
    boxed(r"0.\overline{3}", r"0.3", False, "a repeating decimal is not its start"),
    boxed("1.8333333333333335", r"\frac{11}{6}", True, "a float of a program (MAWPS golds)"),
    boxed("1.83", "1.8333333333333335", False, "two decimals of a gold with sixteen"),
    boxed(r"\pi", "3.14159", False, "pi is not its decimals"),
    boxed("five", "5", True, "a number in words"),
    boxed(r"\text{six}", "5", False, "another number in words"),
    boxed("0.000067", ".0000672", False, "six decimals do not make small numbers equal"),
    boxed(r"6.72 \times 10^{-5}", ".0000672", True, "a small number in scientific notation"),
    boxed(r"\log 2", "1234567", False, "a difference on which the verifier's algebra would hang"),
    boxed("9" * 400, "7", False, "a number of 400 digits"),
    boxed(r"\frac{1}{0}", "7", False, "division by zero"),
]
FRACTIONS = [
    boxed(r"\frac{2}{4}", r"\frac{1}{2}", True, "equal fractions"),
    boxed(r"\dfrac12", r"\frac{1}{2}", True, "a fraction without braces"),
    boxed("0.5", r"\frac{1}{2}", True, "decimal of a fraction"),
    boxed("½", r"\frac{1}{2}", True, "a fraction in one sign"),
    boxed(r"1\frac{1}{2}", r"\frac{3}{2}", True, "mixed number"),
    boxed(r"1\frac{1}{2}", r"\frac{1}{2}", False, "a mixed number is no product"),
    boxed(r"11\sqrt2", r"11 \sqrt{2}", True, "a root without braces"),
    boxed("√8", r"2\sqrt{2}", True, "a typographic root"),
    boxed("7.14", r"\sqrt{51}", False, "a rounding is not the root"),
]
UNITS = [
    boxed(r"5\text{ cm}", "5", True, "a unit that the gold leaves out"),
    boxed("5", r"5\text{ cm}", True, "a unit that the answer leaves out"),
    boxed(r"15", r"15\mbox{ cm}^2", True, "a unit in an mbox (MATH golds)"),
    boxed(r"5~\text{cm}", "5", True, "a tie before the unit"),
    boxed(r"5 \, \mathrm{m/s}", "5", True, "a speed"),
    boxed("5 km/h", "5", True, "a speed without LaTeX"),
    boxed(r"5\ \text{m}/\text{s}", "5", True, "a speed in two words"),
    boxed("36 cm^2", "36", True, "a squared unit without LaTeX"),
    boxed("36 cm²", "36", True, "a squared unit with a typographic square"),
    boxed(r"3^{\text{rd}}", "3", True, "an ordinal"),
    boxed("18 dollars", "18", True, "dollars in words"),
    boxed(r"\text{18 apples}", "18", True, "number and thing in one text"),
    boxed(r"\$18", "18", True, "a dollar sign"),
    boxed("$18$", "18", True, "math signs inside the box"),
    boxed("18.90", r"\$18.90", True, "a dollar sign in the gold"),
    boxed("Rs. 400", "400", True, "rupees before the number"),
    boxed("400 €", "400", True, "euros after the number"),
    boxed(r"90^\circ", "90", True, "degrees"),
    boxed("90", r"90^\circ", True, "degrees that the answer leaves out"),
    boxed("90°", r"90^{\circ}", True, "a typographic degree"),
    boxed(r"\frac{270}{7}", r"\frac{270}7\text{ degrees}", True, "degrees in words"),
    boxed(r"6\text{ cm}", r"5\text{ cm}", False, "the number decides where units agree"),
    boxed(r"5\text{ cm}", r"5\text{ m}", True, "KNOWN: math-verify drops units, so that they never differ"),
    boxed(r"\frac{\pi}{6}", r"30^\circ", False, "KNOWN: degrees are not turned into radians"),
    boxed(r"50\%", "50", True, "a percent sign that the gold leaves out"),
    boxed("50", r"50\%", True, "a percent sign that the answer leaves out"),
    boxed("50%", "0.5", True, "percent as a share"),
    boxed(r"0.125", r"12.5\%", True, "a share for a gold percentage"),
    boxed(r"12.5\%", "12.5", True, "a broken percentage without its sign"),
    boxed("50 percent", r"50\%", True, "percent in words"),
    boxed(r"50\%", r"0.5\%", False, "two percentages are compared as they stand"),
    boxed("0.5", "50", False, "a share without any percent sign"),
    boxed(r"5\pi", "5", False, "pi is no unit"),
    boxed(r"5x", "5", False, "a variable is no unit"),
]
EXPRESSIONS = [
    boxed("1+x", "x+1", True, "terms in another order"),
    boxed("p-q", "p - q", True, "spaces around a minus are no words"),
    boxed("q-p", "p - q", False, "a difference has an order"),
    boxed("x=5", "5", True, "a solved variable"),
    boxed("5", "x=5", True, "the variable is in the gold only"),
    boxed("y=5", "x=5", False, "another variable"),
    boxed("x = 2+3 = 5", "5", True, "a chain of equations"),
    boxed("2x+3", "y = 2x + 3", True, "the right side of a gold equation"),
    boxed("y-2x=3", "y = 2x + 3", True, "an equation turned round"),
    boxed("f(x)=2x", "2x", True, "a function's name"),
    boxed(r"\approx 3.14", "3.14", True, "a sign for about"),
    boxed(r"\text{The answer is } 5", "5", True, "words before the number"),
    boxed(r"\boldsymbol{5}", "5", True, "another bold"),
    boxed(r"\textcolor{red}{5}", "5", True, "colour"),
    boxed(r"\displaystyle 5", "5", True, "style"),
    boxed(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", True, "brackets"),
    boxed("(1, 2)", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True, "a vector as a tuple"),
    boxed(r"\langle 1, 2 \rangle", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True, "a vector in angles"),
    boxed("(2, 1)", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False, "a vector in another order"),
    boxed("2516_{8}", "2516_8", True, "a number's base in braces"),
    boxed("2516", "2516_8", True, "a base that the question names"),
    boxed("2516_{9}", "2516_8", False, "another base"),
    boxed(r"4210_{\text{five}}", "4210_5", True, "a base in words"),
    boxed("x" * 100, "7", False, "a long product"),
    boxed(r"\frac{}{}", "7", False, "an empty fraction"),
    boxed("^_^_^", "7", False, "no mathematics"),
    boxed("{" * 60 + "7" + "}" * 60, "7", True, "deep nesting"),
    boxed("(" * 30 + "7" + ")" * 30, "8", False, "deep parentheses"),
]
SEVERAL = [
    boxed(r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", True, "sized brackets"),
    boxed("(2,1)", "(1,2)", False, "pairs are ordered"),
    boxed("(1,2)", "[1,2]", False, "open and closed intervals"),
    boxed(r"\left(3, 4\right]", "(3,4]", True, "a half-open interval"),
    boxed("x < 3", r"(-\infty, 3)", True, "an inequality for an interval"),
    boxed(r"(-\infty, 3)", "x < 3", True, "an interval for an inequality"),
    boxed(r"x \le 3", r"(-\infty, 3)", False, "the end point matters"),
    boxed(r"-2 \le x \le 7", r"x \in [-2,7]", True, "a double inequality"),
    boxed(r"(3,\infty) \cup (-\infty,2)", r"(-\infty, 2) \cup (3, \infty)", True, "a union in another order"),
    boxed(r"\{2,1\}", r"\{1,2\}", True, "sets have no order"),
    boxed(r"\{1,2,3\}", r"\{1,2\}", False, "a set with one too many"),
    boxed(r"(1,2)", r"\{1,2\}", False, "a pair is no set"),
    boxed(r"\{1,2\}", "(1,2)", False, "a set is no pair"),
    boxed("-2, 1", "1,-2", True, "a list of roots in another order"),
    boxed("1", "1,-2", False, "one root of two"),
    boxed(r"x=3 \text{ or } x=5", "3,5", True, "roots with their variable"),
    boxed(r"3 \text{ or } 5", "3,5", True, "or in words"),
    boxed(r"3 \text{ and } 5", "3,5", True, "and in words"),
    boxed(r"3 \text{ or } 5", "3", False, "two answers for one"),
    boxed(r"3, 5", "5", False, "a list that holds the gold"),
    boxed(r"\pm 2", "2,-2", True, "plus or minus"),
    boxed(r"2", r"\pm 2", False, "half of plus or minus"),
    boxed(r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}", True, "plus or minus a root"),
    boxed(r"(3,4), (1,2)", "(1,2),(3,4)", True, "a list of points"),
    boxed("3:4", r"\frac{3}{4}", True, "a ratio"),
    boxed("4:3", "3:4", False, "a ratio has an order"),
    boxed(r"\varnothing", r"\emptyset", True, "two signs for the empty set"),
    boxed(r"\text{No solution}", r"\emptyset", True, "the empty set in words"),
    boxed(r"\emptyset", "0", False, "the empty set is not zero"),
    boxed(r"\{\}", r"\emptyset", True, "empty braces"),
]
TEXTS = [
    boxed(r"\text{Monday}", "Monday", True, "text in a text box"),
    boxed("Friday", r"\text{Friday}", True, "text without a text box"),
    boxed(r"\text{friday}", r"\text{Friday}", True, "case"),
    boxed(r"\textbf{Evelyn}", r"\text{Evelyn}", True, "bold text"),
    boxed(r"\text{Monday}", r"\text{Tuesday}", False, "another text"),
    boxed(r"\text{an ellipse}", r"\text{ellipse}", True, "an article"),
    boxed("June 20", r"\text{June 20}", True, "words and a number"),
    boxed("June 21", r"\text{June 20}", False, "the same words with another number"),
    boxed(r"\text{all real numbers}", r"(-\infty,\infty)", True, "an interval in words"),
    boxed("evne", r"\text{even}", False, "an anagram is another word"),
    boxed("C", r"\text{(C)}", True, "a letter in parentheses"),
    boxed(r"\text{not even}", r"\text{even}", False, "a negated word"),
]
BAD_GOLDS = [
    boxed("7", "", False, "an empty gold"),
    boxed("7", r"\frac{1}{0}", False, "an undefined gold"),
    boxed("7", "$$$", False, "a gold that is no answer"),
]

SPEEDS = ["12 km/h", "15 km/h", "18 km/h", "20 km/h", "None of these"]
NUMERIC = ["61", "65", "67.40", "1/2", "$78.20"]
ROOTS = ["5(√3 + 1)", "6(√3 + √2)", "7(√3 – 1)", "8(√3 – 2)", "None of these"]
LOGIC = ["All cats are black.", "Some cats are black", "It is not true that cats bark", "Dogs and cats are black"]


def choice(text: str, gold: str, correct: bool, why: str, answer: str | None = ANY, options=None) -> Case:
    return Case("choice", text, gold, correct, why, gold if correct and answer == ANY else answer, options)


FORMS = [
    choice("The answer is (C).", "C", True, "the ending that the prompt asks for"),
    choice("answer: C", "C", True, "a colon"),
    choice("Answer - C", "C", True, "a dash"),
    choice("Answer: **(C)**", "C", True, "bold letter"),
    choice("ANSWER C", "C", True, "no colon"),
    choice("### Final Answer:\n**C**", "C", True, "the letter on the next line"),
    choice("The correct answer is **C. 18 km/h**", "C", True, "letter and text", options=SPEEDS),
    choice("The correct option is C", "C", True, "option instead of answer"),
    choice("So the best choice would be (C), since it fits.", "C", True, "choice instead of answer"),
    choice("The answer to this question is therefore C.", "C", True, "words between"),
    choice('The answer is "C".', "C", True, "quotes"),
    choice("The answer is $C$.", "C", True, "math signs"),
    choice(r"\boxed{\text{C}}", "C", True, "text in a box"),
    choice(r"$\boxed{\textbf{(C)}}$", "C", True, "bold and parentheses in a box"),
    choice(r"\boxed{(C) 12}", "C", True, "letter and value in a box"),
    choice(r"\boxed{C. 18}", "C", True, "letter, full stop and value in a box", options=SPEEDS),
    choice(r"\boxed{\text{Option C}}", "C", True, "option in a box"),
    choice(r"\boxed{c}", "C", True, "lower case in a box"),
    choice("C", "C", True, "only the letter"),
    choice("(c)", "C", True, "only the letter, lower case"),
    choice("Option C", "C", True, "option and nothing else"),
    choice("(C) because the others are too small.", "C", True, "the letter first, then the reason"),
    choice("C: the others are too small.", "C", True, "the letter first, with a colon"),
    choice("The two lines agree.\n\nC", "C", True, "the letter on the last line"),
    choice("the answer is c.", "C", True, "lower case at the end of a sentence"),
    choice("I would go with option (C) here.", "C", True, "going with"),
    choice("We choose C.", "C", True, "choosing"),
    choice("C is the correct answer.", "C", True, "the letter before the verdict"),
    choice("Therefore, C.", "C", True, "a conclusion"),
    choice("<answer>C</answer>", "C", True, "answer tags"),
    choice("I think option C fits the facts.", "C", True, "an option mentioned in the last sentence"),
    choice("The answer is C", " (c) ", True, "a gold in parentheses", "C"),
]
NEGATIONS = [
    choice("A is wrong, so B", "B", True, "a negation, then a conclusion"),
    choice("It is not A but B.", "B", True, "not this but that"),
    choice("The answer is not A, but B.", "B", True, "the answer is not"),
    choice("It cannot be A, B or D. The answer is C.", "C", True, "a list of impossible ones"),
    choice("The answer is not A.", "A", False, "only a negation", None),
    choice("The answer isn't A.", "A", False, "is not, in short", None),
    choice("Option A is incorrect. Option B is correct. Option C is incorrect.", "B", True, "verdicts one by one"),
    choice("The answer is B. Option A is true but does not follow.", "B", True, "a remark after the answer"),
    choice("The answer is A, and B is wrong.", "A", True, "a negation after the answer"),
    choice("A, B and D are ruled out, leaving C.", "C", True, "what is left"),
    choice("It rains, so A is wrong.", "A", False, "a conclusion that denies a letter", None),
    choice("I don't think option A fits.", "A", False, "a mention with a negation", None),
    choice("Why is A wrong? Because of the rain. The answer is D", "D", True, "a question first"),
]
CORRECTIONS = [
    choice("The answer is A. Wait, no: the answer is B.", "B", True, "a correction"),
    choice("The answer is A. Actually, B is correct.", "B", True, "a weaker statement after a correction"),
    choice(r"\boxed{A} Hold on. \boxed{B}", "B", True, "a corrected box"),
    choice(r"So \boxed{A}. Sorry, I made a mistake. The answer is (D).", "D", True, "a box, then words"),
    choice("The answer is B. Wait, let me check A again. Yes, it is fine.", "B", True, "a check that changes nothing"),
    choice("If it rains, the answer is A. It does not rain, and so the answer is B.", "B", True, "the last one counts"),
    choice("<think>The answer is A</think>The answer is B.", "B", True, "the thoughts do not count"),
    choice("<think>The answer is B</think>I am not sure.", "B", False, "only what follows the thoughts counts", None),
    choice("<think>The answer is B, but", "B", False, "thinking cut at the budget", None),
    choice("The answer is A or B.", "A", False, "two letters", "A, B"),
    choice("The answer is A. The answer is B.", "B", False, "two answers, nothing between", "A, B"),
    choice(r"\boxed{A} or \boxed{B}", "A", False, "two boxes", "A, B"),
    choice(r"\boxed{A, B}", "A", False, "two letters in a box", "A, B"),
]
ARTICLES = [
    choice("A train leaves at noon.", "A", False, "an article", None),
    choice("The answer is A train that leaves at noon", "A", False, "an article after is", None),
    choice("Let C be the cost and D the distance.", "C", False, "variables", None),
    choice("Since A + B = 12, we are done.", "A", False, "variables in a sum", None),
    choice("The answer is A because it rains.", "A", True, "no article before because"),
    choice("A. 12\nB. 15\nC. 18\nD. 20", "A", False, "the options repeated", None),
    choice("A. 12\nB. 15\nC. 18\n\nThe answer is B", "B", True, "the options repeated, then an answer"),
    choice("The answer is F.", "E", False, "a letter outside the options", "F"),
    choice("The answer is E.", "D", False, "a letter outside these options", "E", LOGIC),
    choice("I do not know.", "A", False, "no choice", None),
    choice("The answer is A.", "F", False, "a gold that is no letter of ours", None),
    choice("The answer is A.", "", False, "an empty gold", None),
]
OPTIONS = [
    choice(r"So \boxed{18}", "C", True, "a boxed value", options=SPEEDS),
    choice(r"\boxed{18 \text{ km/h}}", "C", True, "a boxed value with its unit", options=SPEEDS),
    choice(r"\boxed{17}", "C", False, "a value that is no option", None, SPEEDS),
    choice("The answer is 18 km/h.", "C", True, "the value in words", options=SPEEDS),
    choice(r"\boxed{0.5}", "D", True, "a decimal for an option's fraction", options=NUMERIC),
    choice(r"\boxed{\$67.4}", "C", True, "a zero less", options=NUMERIC),
    choice(r"\boxed{5(\sqrt{3}+1)}", "A", True, "a LaTeX root for a typographic one", options=ROOTS),
    choice(r"\boxed{7\sqrt{3}-7}", "C", True, "an equal expression", options=ROOTS),
    choice(r"\boxed{\text{None of these}}", "E", True, "an option's text in a box", options=ROOTS),
    choice(r"\boxed{6}", "E", True, "two options with one text", options=["15", "6", "12", "14", "6"]),
    choice("Hence some cats are black.", "B", True, "an option's text at the end", options=LOGIC),
    choice("So it is not true that cats bark.", "C", True, "an option that holds a negation", options=LOGIC),
    choice("Only G and H came.", "A", True, "names of people are no letters", options=["Only G and H came", "F came"]),
    choice("The answer is A sits by B.", "B", True, "a text that begins with a letter", options=["x", "A sits by B"]),
    choice("The answer is A or E.", "A", False, "one of two letters is no option", "A, E", LOGIC),
    choice("It is not said that some cats are black.", "B", False, "an option's text denied", None, LOGIC),
    choice(r"The answer is (B) 12 km/h.", "B", True, "the letter counts, not the text beside it", options=SPEEDS),
]
CASES = [
    *(PLACES + NUMBERS + FRACTIONS + UNITS + EXPRESSIONS + SEVERAL + TEXTS + BAD_GOLDS),
    *(FORMS + NEGATIONS + CORRECTIONS + ARTICLES + OPTIONS),
]
